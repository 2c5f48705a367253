"""Gemma 2 and 3: a norm before and behind attention and MLP, blocks with and without a sliding window, soft caps."""
