"""GLM-4.5, dots.llm1 and Solar Open: Llama's attention, of GLM with part of each head turned, and DeepSeek-V3's
experts."""
