"""The graph of GLM is Llama's."""

from autoshard.models.llama.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
