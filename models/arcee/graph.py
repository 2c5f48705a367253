"""The graph of Arcee is Nemotron's, with Llama's norms."""

from autoshard.models.nemotron.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
