"""K-EXAONE: the attention of EXAONE 4 behind a norm, and DeepSeek-V3's experts."""
