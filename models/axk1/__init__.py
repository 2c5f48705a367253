"""A.X-K1: DeepSeek-V3's attention and experts, with a norm behind these (SK Telecom 2026)."""
