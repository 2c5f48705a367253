"""StableLM: Llama's attention, of which a quarter of each head turns, and MLP behind LayerNorms, or side by side behind
one. Heads may have LayerNorms of their own."""
