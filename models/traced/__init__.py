"""A user's own torch module, as `autoshard.tracer` found it: its graph stands in the ModelSpec itself."""
