"""LFM2: blocks with a short convolution or attention, and an MLP or experts (Liquid AI 2025, arXiv 2511.23404)."""
