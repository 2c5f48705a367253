"""The graph of Granite with sliding windows: Llama's blocks, or those of Granite's mixtures; windows, sinks and
positions are in the ModelSpec."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.granite_hybrid import graph as granite_hybrid
from autoshard.models.llama import graph as llama
from autoshard.models.llama.graph import embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    append = granite_hybrid.block if model.is_moe else llama.block
    return append(b, model, x, layer, kernel)
