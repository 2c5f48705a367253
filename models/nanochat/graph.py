"""The graph of nanochat as operators over named dims: Llama's attention, an MLP of two matrices, a norm of the
embeddings too."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gpt2.graph import plain_mlp
from autoshard.models.llama.graph import attention, head, norm, normed_mlp
from autoshard.models.llama.graph import embedding as tokens
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

UP, DOWN = "fc1", "fc2"


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    return norm(b, model, "model.embed_norm", tokens(b, model))


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    inner = partial(plain_mlp, up_name=UP, down_name=DOWN)
    return normed_mlp(b, model, attention(b, model, x, layer, kernel), layer, "mlp", inner)
