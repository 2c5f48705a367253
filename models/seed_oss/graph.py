"""The graph of Seed-OSS is Llama's."""

from autoshard.models.llama.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
