"""GLM-4 of 2024: Llama with half of each head turned, as pairs of neighbours, and biases on queries, keys, values."""
