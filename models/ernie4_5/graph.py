"""The graph of ERNIE 4.5 as operators over named dims: Llama's, with DeepSeek-V3's experts in mixtures."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.graph import mlp as experts
from autoshard.models.llama.graph import attention, embedding, head, mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    x = attention(b, model, x, layer, kernel)
    return (experts if model.is_moe else mlp)(b, model, x, layer)
