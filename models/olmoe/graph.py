"""The graph of OLMoE is that of Qwen's mixtures."""

from autoshard.models.qwen.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
