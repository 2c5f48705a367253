"""The names and the form of our parameters in Hugging Face checkpoints of Seed-OSS are Llama's."""

from autoshard.models.llama.weights import block, ends

__all__ = ["block", "ends"]
