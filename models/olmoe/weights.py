"""The names and the form of our parameters in Hugging Face checkpoints of OLMoE are those of Qwen's mixtures."""

from autoshard.models.qwen.weights import block, ends

__all__ = ["block", "ends"]
