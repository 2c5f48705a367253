"""Granite 4: most blocks mix tokens by Mamba-2's state space, the others by attention; experts or a plain gated MLP.

Granite 3's mixtures have such experts and attention alone.
"""
