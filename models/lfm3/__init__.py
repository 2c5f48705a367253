"""LFM3: LFM2's convolutions among attention with windows and without, gates and more norms (Liquid AI 2026)."""
