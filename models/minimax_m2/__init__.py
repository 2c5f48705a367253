"""MiniMax-M2: norms over all heads, part of each head turned, and DeepSeek-V3's choice of experts."""
