"""Jamba: Mamba-1's state space in most blocks, attention without positions in the others; experts or an MLP in each."""
