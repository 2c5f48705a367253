"""Mixtral: Llama's attention with a mixture of gated experts in place of the MLP."""
