"""The graph of Falcon-H1 as operators over named dims: attention beside Granite 4's state space, both scaled."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.granite_hybrid.graph import state_space
from autoshard.models.llama import graph as llama
from autoshard.models.llama.graph import gated_mlp, head, norm, normed_mlp, self_attention
from autoshard.spec.branch_multipliers import BranchMultipliers
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    tokens = llama.embedding(b, model)
    return b.scaled("model.embedding_multiplier", tokens, _constants(model).embedding_multiplier)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append x + attention(norm(x)) + state_space(norm(x)), then norm, MLP and residual, and return the output. x:
    [batch, seq, embed]. All three are scaled; the constant of what attention reads is taken behind it."""
    prefix, constants = f"model.layers.{layer}", _constants(model)
    attention, mamba = f"{prefix}.self_attn", f"{prefix}.mamba"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    attended = self_attention(b, model, h, layer, kernel)
    attended = b.scaled(f"{attention}.out_multiplier", attended, constants.attention)
    scanned = state_space(b, model, h, mamba, constants.projections)
    scanned = b.scaled(f"{mamba}.out_multiplier", scanned, constants.ssm_out_multiplier)
    branches = (attended, f"{attention}.dropout"), (scanned, f"{mamba}.dropout")
    x = residual(b, model, f"{prefix}.attention_residual", x, *branches)
    return normed_mlp(b, model, x, layer, "feed_forward", partial(gated_mlp, activation=constants.activation))


def _constants(model: ModelSpec) -> BranchMultipliers:
    assert model.branch_multipliers is not None, model.name
    return model.branch_multipliers
