"""The graph of Apertus is that of Nemotron and Arcee, with a norm of each head and xIELU between the matrices."""

from autoshard.models.nemotron.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
