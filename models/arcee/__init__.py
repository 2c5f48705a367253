"""Arcee: Llama with Nemotron's MLP of two matrices and a squared ReLU."""
