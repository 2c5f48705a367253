"""Mistral Large 4's text model: latent attention with an indexer and queries that grow with their place, blocks without
positions, and Mistral Small 4's experts."""
