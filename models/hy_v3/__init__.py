"""Hy3: Llama's attention with a norm of each head, and DeepSeek-V3's experts without groups."""
