"""The graph of MiniMax-Text-01 and MiniMax-M1 as operators over named dims."""

from __future__ import annotations

from typing import Any

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_branch
from autoshard.models.llama.graph import HIDDEN, embedding, head, linear, norm, norm_over_heads, self_attention
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LIGHTNING

__all__ = ["block", "embedding", "head"]

HEADS = "lightning_head headdim"
PROJECTED = ("q_proj", "k_proj", "v_proj")
"""The projections of lightning attention to heads, of which the checkpoint has one matrix."""
EPS = 1e-6
"""Added to the mean square in the norm behind lightning attention, whatever the others add."""
SMALL = 1e-5
"""Keeps the rates of fading of the last block above 0, and a single block's finite."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    weights, prefix = model.weighted_residual, f"model.layers.{layer}"
    assert weights is not None, model.name
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    if model.mixer_of(layer) == LIGHTNING:
        out, joined = lightning_attention(b, model, h, layer), weights.of_lightning_attention
    else:
        out, joined = self_attention(b, model, h, layer, kernel), weights.of_attention
    x = weighted(b, model, f"{prefix}.attention_residual", h, (out, f"{prefix}.self_attn.dropout"), joined)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module, name = "mlp", f"{prefix}.block_sparse_moe"
    out = mixture(b, model, h, name)
    return weighted(b, model, f"{prefix}.mlp_residual", h, (out, f"{name}.dropout"), weights.of_mlp)


def weighted(
    b: GraphBuilder, model: ModelSpec, name: str, h: str, branch: tuple[str, str], joined: tuple[float, float]
) -> str:
    """Append the sum of h and of a branch that may be dropped, each times its number of `joined`, and return the sum's
    name. h: [batch, seq, embed], what the branch read. branch: (its output, the name of its dropout operator)."""
    b.module, (kept, added) = "residual", joined
    dropped = dropped_branch(b, model, *branch)
    x = h if kept == 1 else b.scaled(f"{name}_kept", h, kept)
    alpha: dict[str, Any] = {} if added == 1 else {"alpha": added}
    return b.elementwise("add", name, x, dropped, **alpha)


def lightning_attention(b: GraphBuilder, model: ModelSpec, h: str, layer: int) -> str:
    """Append projections, lightning attention, and a norm over all heads that is multiplied by the sigmoid of a gate;
    returns the output projection's output. h: [batch, seq, embed]."""
    sizes, name = model.lightning_attention, f"model.layers.{layer}.lightning_attn"
    assert sizes is not None, model.name
    b.module = "attention"
    q, k, v, gate = (
        linear(b, f"{name}.{part}", h, f"{HIDDEN}, {HEADS} embed -> batch seq {HEADS}", False)
        for part in (*PROJECTED, "output_gate")
    )
    b.module = "core_attention"
    form: dict[str, Any] = {"rates": rates(model, layer), "chunk_size": sizes.block_size}
    loops = ("batch", HEADS.split()[0])
    mixed = b.operator("lightning_attention", f"{name}.core_attention", (q, k, v), b.dims(v), loops, **form)
    b.module = "attention"
    normal = norm_over_heads(b, model, f"{name}.norm", mixed, model.num_attention_heads, eps=EPS)
    gated = b.elementwise("sigmoid_mul", f"{name}.gated", normal, gate)
    return linear(b, f"{name}.out_proj", gated, f"batch seq {HEADS}, embed {HEADS} -> batch seq embed", False)


def rates(model: ModelSpec, layer: int) -> tuple[float, ...]:
    """The rates at which the heads of a block's lightning attention forget, a token. They fall from head to head by
    one factor, to 1/256 of the block's, and from block to block by one number."""
    heads, last = model.num_attention_heads, model.num_hidden_layers - 1
    of_block = 1 - layer / (last + SMALL) + SMALL
    base = 1 / 2 ** (8 / heads)
    return tuple(base ** (head + 1) * of_block for head in range(heads))
