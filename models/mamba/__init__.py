"""Mamba and Falcon Mamba: each block is a norm and Mamba-1's state space; no attention and no MLP."""
