"""GLM-4.5 and dots.llm1: Llama's attention, of GLM with part of each head turned, and DeepSeek-V3's experts."""
