"""The graph of Hy3 is that of GLM-4.5, with a norm of each head."""

from autoshard.models.glm4_moe.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
