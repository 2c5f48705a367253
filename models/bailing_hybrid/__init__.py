"""Ling 3.0: Kimi Linear's delta rule with a bound on how fast channels fade, latent attention with positions and gates,
and DeepSeek-V3's experts (inclusionAI 2026)."""
