"""Qwen3-Next: three of four blocks have linear attention by the gated delta rule, all have many small experts."""
