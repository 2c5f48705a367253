"""The graph of Nemotron, Arcee, Jais 2 and StarCoder2 as operators over named dims: Llama's attention, an MLP of two
matrices."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gpt2.graph import plain_mlp
from autoshard.models.llama.graph import attention, embedding, head, normed_mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    inner = partial(plain_mlp, up_name="up_proj", down_name="down_proj")
    return normed_mlp(b, model, attention(b, model, x, layer, kernel), layer, "mlp", inner)
