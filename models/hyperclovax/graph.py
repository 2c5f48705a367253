"""The graph of HyperCLOVA X as operators over named dims: Gemma's blocks, scaled as Granite's."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gemma.graph import sandwich
from autoshard.models.llama.graph import embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

BEHIND_ATTENTION, BEHIND_MLP = "post_norm1", "post_norm2"


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return sandwich(b, model, x, layer, kernel, (BEHIND_ATTENTION, "post_attention_layernorm", BEHIND_MLP))
