"""Nemotron: LayerNorm of weight 1 + w, half of each head turned, an MLP of two matrices with a squared ReLU; Arcee:
that MLP with Llama's norms and positions."""
