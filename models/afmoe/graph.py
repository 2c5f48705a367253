"""The graph of AFMoE as operators over named dims: Gemma's blocks, with a gate behind attention and with experts."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gemma.graph import sandwich
from autoshard.models.llama.graph import embedding, gated_mlp, head
from autoshard.models.mixtral.graph import mixture_with_shared
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

NORMS = ("post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return sandwich(b, model, x, layer, kernel, NORMS, partial(_mlp, layer=layer))


def _mlp(b: GraphBuilder, model: ModelSpec, h: str, name: str, layer: int) -> str:
    """Append the experts and the one that every token goes to, or an MLP where a block has no experts; returns the
    output. h: [batch, seq, embed]."""
    if not model.has_experts(layer):
        return gated_mlp(b, model, h, name, "dense_ffn")
    return mixture_with_shared(b, model, h, name)
