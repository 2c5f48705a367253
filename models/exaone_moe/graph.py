"""The graph of K-EXAONE is that of GLM-4.5: windows and positions of its blocks are in the ModelSpec."""

from autoshard.models.glm4_moe.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
