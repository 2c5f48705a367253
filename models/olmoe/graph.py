"""The graph of OLMoE as operators over named dims: MiniMax-M2's attention, Qwen's experts."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import embedding, head
from autoshard.models.minimax_m2.graph import attention
from autoshard.models.qwen.graph import mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)
