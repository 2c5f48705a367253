"""GLM-4.5: Llama's attention with biases, part of each head turned, and DeepSeek-V3's routed and shared experts."""
