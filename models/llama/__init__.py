"""Llama 2, 3, 3.1 and Mistral: RMS norm, rotary positions, grouped-query attention, gated MLP."""
