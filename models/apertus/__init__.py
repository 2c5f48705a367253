"""Apertus: Llama's attention with a norm of each head, an MLP of two matrices whose activation is learned, xIELU."""
