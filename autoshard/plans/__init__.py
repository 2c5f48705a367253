"""A plan: inputs by value, every choice, what is expected of it; and its file."""
