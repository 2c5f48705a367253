"""LFM2: blocks with a short convolution between two gates, or with attention (Liquid AI 2025, arXiv 2511.23404)."""
