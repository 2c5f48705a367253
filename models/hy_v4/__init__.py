"""Hy4: a residual of several streams that nothing mixes, latent attention with an indexer, gates and sinks."""
