"""OLMo: Llama with LayerNorms that have no weight, and queries, keys and values that may be cut off."""
