"""The graph of Nemotron-H and Nemotron 3 as operators over named dims: a norm, one branch and a residual in each
block."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual
from autoshard.models.gpt2.graph import plain_mlp
from autoshard.models.granite_hybrid.graph import state_space
from autoshard.models.llama.graph import HEAD, cross_entropy, norm, self_attention, token_embedding, vocabulary
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA, NONE

TABLE = "backbone.embeddings.weight"
UP, DOWN = "up_proj", "down_proj"
_mlp = partial(plain_mlp, up_name=UP, down_name=DOWN)


def dense_dim(model: ModelSpec) -> str:
    """The dim of an MLP's width in blocks without experts."""
    return "dense_ffn" if model.is_moe else "ffn"


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    tokens = token_embedding(b, "backbone.embeddings", b.index_input("input_ids", "batch seq"), TABLE)
    return dropped_embedding(b, model, "backbone.dropout", tokens)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"backbone.layers.{layer}"
    name, mixer = f"{prefix}.mixer", model.mixer_of(layer)
    b.module = "mlp_norm" if mixer == NONE else "attention_norm"
    h = norm(b, model, f"{prefix}.norm", x)
    if mixer == NONE:
        b.module = "mlp"
        branches = _experts(b, model, h, name) if model.has_experts(layer) else (_dense(b, model, h, name),)
    elif mixer == MAMBA:
        branches = ((state_space(b, model, h, name), f"{name}.dropout"),)
    else:
        branches = ((self_attention(b, model, h, layer, kernel, name), f"{name}.dropout"),)
    return residual(b, model, f"{prefix}.residual", x, *branches)


def _dense(b: GraphBuilder, model: ModelSpec, h: str, name: str) -> tuple[str, str]:
    return _mlp(b, model, h, name, ffn=dense_dim(model)), f"{name}.dropout"


def _experts(b: GraphBuilder, model: ModelSpec, h: str, name: str) -> tuple[tuple[str, str], ...]:
    """Append routed experts and the shared one; returns both branches."""
    routed = mixture(b, model, h, name, up=UP, down=DOWN)
    shared = _mlp(b, model, h, f"{name}.shared_experts", ffn="shared_ffn")
    return (routed, f"{name}.dropout"), (shared, f"{name}.shared_experts_dropout")


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = norm(b, model, "backbone.norm_f", x)
    return cross_entropy(b, model, vocabulary(b, model, HEAD, h, shared=TABLE))
