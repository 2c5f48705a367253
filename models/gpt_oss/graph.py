"""The graph of gpt-oss as operators over named dims: Llama's attention with sinks, Mixtral's experts with biases."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import attention, embedding, head, normed_mlp
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ROUTED

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    experts = partial(
        mixture,
        gate="gate_proj",
        up="up_proj",
        down="down_proj",
        router_name="router",
        activation=model.activation_of(layer, ROUTED),
    )
    return normed_mlp(b, model, attention(b, model, x, layer, kernel), layer, "mlp", experts)
