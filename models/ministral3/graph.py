"""The graph of Ministral 3's text models is Llama's."""

from autoshard.models.llama.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
