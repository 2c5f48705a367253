"""Tencent's Hunyuan: Llama's attention with a norm of each head behind its positions; Llama's MLP, or experts."""
