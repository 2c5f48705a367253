"""OLMo 2 and 3, FlexOlmo, EXAONE 4: Llama with norms behind attention and MLP or experts, and of queries and keys."""
