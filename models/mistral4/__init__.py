"""Mistral Small 4's text model: latent attention of DeepSeek-V3, whose queries grow with their place, and experts
behind a softmax."""
