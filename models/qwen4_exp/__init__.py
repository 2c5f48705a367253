"""Qwen4-Exp: linear attention and attention to chosen pools of keys, streams whose every number is weighed, embeddings
of n-grams, and many small experts."""
