"""A user's own torch module, as `autoshard.trace` found it: its graph stands in the ModelSpec itself."""
