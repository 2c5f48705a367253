"""The names and the form of our parameters in Hugging Face checkpoints of OLMo are those of Llama."""

from autoshard.models.llama.weights import block, ends

__all__ = ["block", "ends"]
