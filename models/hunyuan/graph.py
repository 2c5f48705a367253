"""The graph of Hunyuan is that of ERNIE 4.5, dense and with experts: how heads turn and are normalised is in its row of
the families."""

from autoshard.models.ernie4_5.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
