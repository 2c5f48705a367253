"""Nemotron-H and Nemotron 3: each block has one branch, Mamba-2's state space, attention without positions, an MLP with
a squared ReLU, or experts with it."""
