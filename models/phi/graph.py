"""The graph of Phi as operators over named dims: Cohere 2's blocks with GPT-2's MLP, and a head with a bias."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.cohere2.graph import side_by_side
from autoshard.models.gpt2.graph import plain_mlp
from autoshard.models.llama.graph import HEAD, cross_entropy, embedding, norm, vocabulary, with_bias
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FINAL_NORM

__all__ = ["block", "embedding", "head"]

UP, DOWN = "fc1", "fc2"


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return side_by_side(b, model, x, layer, kernel, partial(plain_mlp, up_name=UP, down_name=DOWN))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    """Append what Llama's head does, with a bias of each token's logit. x: [batch, seq, embed]."""
    b.module = "head"
    product = vocabulary(b, model, f"{HEAD}.matmul", norm(b, model, FINAL_NORM, x))
    return cross_entropy(b, model, with_bias(b, HEAD, product, "vocab", True))
