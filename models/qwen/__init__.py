"""Qwen 2, 2.5 and 3: Llama with biases on queries, keys and values (2) or a norm for each head (3); their mixtures."""
