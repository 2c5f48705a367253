"""The graph of Bamba as operators over named dims: Granite 4's state space or Llama's attention, then an MLP."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.granite_hybrid.graph import state_space
from autoshard.models.llama.graph import attention, embedding, gated_mlp, head, normed_mixer, normed_mlp
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) == MAMBA:
        x = normed_mixer(b, model, x, layer, "mamba", state_space)
    else:
        x = attention(b, model, x, layer, kernel)
    return normed_mlp(b, model, x, layer, "feed_forward", gated_mlp)
