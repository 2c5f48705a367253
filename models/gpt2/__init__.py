"""GPT-2 and GPT-3: layer norm, learned positions, full multi-head attention, GELU MLP, biases, tied embeddings."""
