"""The graph of Granite 4 as operators over named dims, and of Granite 3's mixtures."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import (
    HIDDEN,
    attention,
    embedding,
    gated_mlp,
    head,
    linear,
    norm,
    norm_over_heads,
    normed_mixer,
)
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.linear_attention import Mamba
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA

__all__ = ["block", "embedding", "head"]

PROJECTED = ("z", "x", "dt", "b", "c")
"""The projections of a block with a state space, of which the checkpoint has one matrix."""
CONVOLVED = ("x", "b", "c")
_UNSCALED: Mapping[str, float] = {}


def mamba_dims(mamba: Mamba) -> dict[str, str]:
    """Dims of what a block with a state space makes of a token, by name: z and x of all heads, dt a number for each
    head, b and c of what heads share."""
    group = "" if mamba.mamba_n_groups == 1 else "mamba_group "
    heads, state = f"{group}mamba_head mamba_headdim", f"{group}mamba_state"
    return {"z": heads, "x": heads, "dt": f"{group}mamba_head", "b": state, "c": state}


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == MAMBA:
        x = normed_mixer(b, model, x, layer, "mamba", state_space)
    else:
        x = attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    branches = []
    if model.is_moe:
        routed = mixture(b, model, h, f"{prefix}.block_sparse_moe")
        branches.append((routed, f"{prefix}.block_sparse_moe.dropout"))
    if ffn := mlp_dim(model):
        shared = gated_mlp(b, model, h, f"{prefix}.shared_mlp", ffn)
        branches.append((shared, f"{prefix}.shared_mlp.dropout"))
    return residual(b, model, f"{prefix}.mlp_residual", x, *branches)


def mlp_dim(model: ModelSpec) -> str:
    """The inner dim of the MLP that every token goes to; empty where there is none."""
    if not model.is_moe:
        return "ffn"
    return "shared_ffn" if model.shared_expert_intermediate_size else ""


def state_space(b: GraphBuilder, model: ModelSpec, h: str, name: str, scales: Mapping[str, float] = _UNSCALED) -> str:
    """Append projections, causal convolutions, Mamba-2's state space, a norm over all heads (or over those of each
    group) if there is one, and output projection; returns its output. h: [batch, seq, embed]. scales: by which each of
    PROJECTED is multiplied, if they are."""
    mamba = model.mamba
    assert mamba is not None, model.name
    b.module = "attention"
    dims = mamba_dims(mamba)
    made = {
        part: linear(b, f"{name}.{part}_proj", h, f"{HIDDEN}, {dims[part]} embed -> batch seq {dims[part]}", False)
        for part in PROJECTED
    }
    made |= {part: b.scaled(f"{name}.{part}_scale", made[part], scale) for part, scale in scales.items()}
    mixed = {}
    for part in CONVOLVED:
        conv = f"{name}.{part}_conv1d"
        weights = [b.parameter(f"{conv}.weight", f"{dims[part]} mamba_tap")]
        weights += [b.parameter(f"{conv}.bias", dims[part])] if mamba.mamba_conv_bias else []
        x_dims = b.dims(made[part])
        convolved = (made[part], *weights)
        mixed[part] = b.operator("causal_conv", conv, convolved, x_dims, ("batch", *x_dims[2:]))
    b.module = "core_attention"
    of_heads = [b.parameter(f"{name}.{part}", dims["dt"]) for part in ("A_log", "D", "dt_bias")]
    inputs = (mixed["x"], made["dt"], mixed["b"], mixed["c"], *of_heads)
    loops, chunk = ("batch", *dims["dt"].split()), mamba.mamba_chunk_size
    scanned = b.operator("state_space_scan", f"{name}.scan", inputs, b.dims(mixed["x"]), loops, chunk_size=chunk)
    b.module = "attention"
    gated = b.elementwise("silu_mul", f"{name}.gated", made["z"], scanned)
    if mamba.mamba_rms_norm:
        groups = mamba.mamba_n_groups
        gated = norm_over_heads(b, model, f"{name}.norm", gated, mamba.mamba_n_heads // groups, groups > 1)
    return linear(b, f"{name}.out_proj", gated, f"batch seq {dims['x']}, embed {dims['x']} -> batch seq embed", False)
