"""Phi 1, 1.5 and 2: attention and an MLP of two matrices side by side behind one LayerNorm, and biases everywhere."""
