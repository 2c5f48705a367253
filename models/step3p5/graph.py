"""The graph of Step 3.5 and 3.7 as operators over named dims: Llama's attention with gates, DeepSeek-V3's experts."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import attention, embedding, gated_mlp, head
from autoshard.models.mixtral.graph import mixed_mlp
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import SHARED

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    shared = partial(gated_mlp, activation=model.activation_of(layer, SHARED))
    return mixed_mlp(b, model, attention(b, model, x, layer, kernel), layer, "shared_experts", shared)
