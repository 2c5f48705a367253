"""Bamba: Mamba-2's state space in most blocks, attention that turns half of each head in the others; a gated MLP."""
