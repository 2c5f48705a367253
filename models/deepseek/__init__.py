"""DeepSeek-V2, V3, V3.2 and R1, Kimi-K2, GLM-5: latent attention, first blocks dense, then routed and shared
experts."""
