"""The graph of MiMo-V2-Flash is that of GLM-4.5: heads, sinks and values of its blocks are in the ModelSpec."""

from autoshard.models.glm4_moe.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
