"""DBRX: a mixture with LayerNorm without biases, and with queries, keys and values that are cut off."""
