"""OLMo 2 and 3, EXAONE 4: Llama with norms behind attention and MLP, and of queries and keys."""
