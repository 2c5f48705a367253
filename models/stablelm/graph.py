"""The graph of StableLM: Llama's blocks, or Cohere 2's where attention and MLP stand side by side."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.cohere2 import graph as cohere2
from autoshard.models.llama import graph as llama
from autoshard.models.llama.graph import embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    append = cohere2.block if model.use_parallel_residual else llama.block
    return append(b, model, x, layer, kernel)
