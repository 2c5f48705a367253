"""Seed-OSS: Llama with biases on queries, keys and values."""
