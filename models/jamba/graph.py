"""The graph of Jamba as operators over named dims, and the state space of Mamba-1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import (
    HIDDEN,
    attention,
    embedding,
    gated_mlp,
    head,
    linear,
    normed_mixer,
    normed_mlp,
    rms_norm,
)
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA1

__all__ = ["block", "embedding", "head"]

CHANNEL, SELECTED = "mamba_channel", "mamba_selected"
PROJECTED = ("x", "z")
"""The projections of a block with a state space, of which the checkpoint has one matrix: what is scanned, a gate."""
PARTS = {"dt": "mamba_rank", "b": "mamba_state", "c": "mamba_state"}
"""What is made of the scanned channels, in the order of the rows of one matrix: name -> dim."""
_experts = partial(mixture, gate="gate_proj", up="up_proj", down="down_proj")


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) == MAMBA1:
        x = normed_mixer(b, model, x, layer, "mamba", partial(state_space, normed=rms_norm))
    else:
        x = attention(b, model, x, layer, kernel)
    inner = _experts if model.has_experts(layer) else partial(gated_mlp, ffn=dense_dim(model))
    return normed_mlp(b, model, x, layer, "feed_forward", inner)


def dense_dim(model: ModelSpec) -> str:
    """The dim of an MLP's width in blocks without experts."""
    return "dense_ffn" if model.is_moe else "ffn"


def state_space(b: GraphBuilder, model: ModelSpec, h: str, name: str, normed: Callable[..., str] | None = None) -> str:
    """Append projections, a causal convolution, Mamba-1's state space and its gate, and the output projection; returns
    its output. h: [batch, seq, embed]. normed: appends a norm of what time steps are made of, of B and of C; called
    with (b, model, name of the norm, one of them).

    All channels share B, C and the vector of their time steps: where tp splits channels, the product that makes these
    is a sum over its ranks.
    """
    mamba = model.mamba1
    assert mamba is not None, model.name
    b.module = "attention"
    x, z = (
        linear(b, f"{name}.{part}_proj", h, f"{HIDDEN}, {CHANNEL} embed -> batch seq {CHANNEL}", False)
        for part in PROJECTED
    )
    weights = [b.parameter(f"{name}.conv1d.weight", f"{CHANNEL} mamba_tap")]
    weights += [b.parameter(f"{name}.conv1d.bias", CHANNEL)] if mamba.mamba_conv_bias else []
    dims, loops = b.dims(x), ("batch", CHANNEL)
    x = b.operator("causal_conv", f"{name}.conv1d", (x, *weights), dims, loops)
    selected = f"{name}.selected_proj"
    both = linear(b, selected, x, f"batch seq {CHANNEL}, {SELECTED} {CHANNEL} -> batch seq {SELECTED}", False)
    made, first = dict[str, str](), 0
    for part, dim in PARTS.items():
        rows = dims[:-1]
        made[part] = b.operator("slice", f"{selected}.{part}", (both,), (*rows, dim), rows, first=first)
        first += b.size(dim)
        if normed is not None:
            made[part] = normed(b, model, f"{name}.{part}_layernorm", made[part])
    dt = linear(
        b, f"{name}.dt_proj", made["dt"], f"batch seq mamba_rank, {CHANNEL} mamba_rank -> batch seq {CHANNEL}", False
    )
    b.module = "core_attention"
    of_channels = (
        b.parameter(f"{name}.A_log", f"{CHANNEL} mamba_state"),
        b.parameter(f"{name}.D", CHANNEL),
        b.parameter(f"{name}.dt_proj.bias", CHANNEL),
    )
    scanned = b.operator("selective_scan", f"{name}.scan", (x, dt, made["b"], made["c"], *of_channels), dims, loops)
    b.module = "attention"
    gated = b.elementwise("silu_mul", f"{name}.gated", z, scanned)
    return linear(b, f"{name}.out_proj", gated, f"batch seq {CHANNEL}, embed {CHANNEL} -> batch seq embed", False)
