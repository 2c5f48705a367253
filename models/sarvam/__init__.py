"""Sarvam 30B and 105B (Sarvam AI 2026): Llama's attention or DeepSeek-V3's latent one, and DeepSeek-V3's experts."""
