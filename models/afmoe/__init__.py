"""AFMoE, Arcee's Trinity: Qwen3-Next's attention with a gate, norms around it and around DeepSeek-V3's experts."""
