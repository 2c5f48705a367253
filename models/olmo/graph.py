"""The graph of OLMo is that of Llama; its norms have no weight."""

from autoshard.models.llama.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
