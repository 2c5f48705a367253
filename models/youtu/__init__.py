"""Youtu-LLM: latent attention of DeepSeek-V3, and Llama's MLP."""
