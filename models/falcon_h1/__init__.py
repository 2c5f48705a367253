"""Falcon-H1: attention and Mamba-2's state space side by side behind one norm, then an MLP (TII 2025)."""
