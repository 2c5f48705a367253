"""GLM-5.3: a residual of four streams, Kimi Linear's delta rule in most blocks, latent attention without positions to
the pools of keys that an indexer chooses in the others, and DeepSeek-V3's experts."""
