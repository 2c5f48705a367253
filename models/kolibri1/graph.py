"""The graph of Kolibri 1 as operators over named dims: Gemma's blocks, with experts."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gemma.graph import sandwich
from autoshard.models.llama.graph import embedding, head
from autoshard.models.mixtral.graph import mixture_with_shared
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

NORMS = ("post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return sandwich(b, model, x, layer, kernel, NORMS, mixture_with_shared)
