"""The family of traced models: a user's own torch module, whose graph stands in the ModelSpec itself."""
