"""Kimi Linear: a delta rule whose channels fade by themselves, or latent attention without positions, and DeepSeek-V3's
experts (Kimi Team 2025, arXiv 2510.26692)."""
