"""OLMo 2 and 3: Llama with norms behind attention and MLP, and a norm over all heads of queries and keys."""
