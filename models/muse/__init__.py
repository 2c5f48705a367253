"""Muse, Meta's text models: Gemma's norms around Llama's attention with a gate; in Muse Spark experts that see narrower
tokens, and residuals with gates."""
