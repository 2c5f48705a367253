"""The graph of MiniMax-M2 is Mixtral's."""

from autoshard.models.mixtral.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
