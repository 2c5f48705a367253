"""DeepSeek-V2, V3 and R1, Kimi-K2: latent attention, first blocks dense, then routed and shared experts."""
