"""The graph of GLM-4 as operators over named dims: Gemma's blocks."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gemma.graph import sandwich
from autoshard.models.llama.graph import embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    names = ("post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    return sandwich(b, model, x, layer, kernel, names)
