"""The graph of Qwen3-Next, and of Qwen3.5's text models, as operators over named dims."""

from __future__ import annotations

from typing import Any

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import HIDDEN, attention, embedding, head, linear, mlp, normed_mixer
from autoshard.models.qwen.graph import mlp as experts
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION, SIGMOID

__all__ = ["block", "embedding", "head"]

KEYS, VALUES = "linear_key_head linear_keydim", "linear_key_head linear_group linear_valuedim"
LINEAR_HEADS = {
    "q_proj": KEYS,
    "k_proj": KEYS,
    "v_proj": VALUES,
    "z_proj": VALUES,
    "b_proj": "linear_key_head linear_group",
    "a_proj": "linear_key_head linear_group",
}
"""The projections of linear attention. Checkpoints have fewer matrices: models/qwen3_next/weights.py."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        x = normed_mixer(b, model, x, layer, "linear_attn", linear_attention)
    else:
        x = attention(b, model, x, layer, kernel)
    return (experts if model.is_moe else mlp)(b, model, x, layer)


def linear_attention(b: GraphBuilder, model: ModelSpec, h: str, name: str, norm_eps: float | None = None) -> str:
    """Append projections, causal convolutions of queries, keys and values, the gated delta rule, and a norm of each
    head that is multiplied by a function of a gate; returns the output projection's output. norm_eps: of that norm;
    None: as of the others."""
    b.module = "attention"
    q, k, v, z, beta, a = (
        linear(b, f"{name}.{part}", h, f"{HIDDEN}, {dims} embed -> batch seq {dims}", False)
        for part, dims in LINEAR_HEADS.items()
    )
    q, k, v = (convolved(b, f"{name}.{part}", x) for part, x in (("q_conv1d", q), ("k_conv1d", k), ("v_conv1d", v)))
    b.module = "core_attention"
    a_log, dt_bias = (b.parameter(f"{name}.{part}", "linear_key_head linear_group") for part in ("A_log", "dt_bias"))
    normal = normed_delta_rule(b, model, name, (q, k, v, beta, a, a_log, dt_bias), "norm", norm_eps)
    assert model.linear_attention is not None, model.name
    if model.linear_attention.output_gate_type == SIGMOID:
        gated = b.elementwise("sigmoid_mul", f"{name}.gated", normal, z)
    else:
        gated = b.elementwise("silu_mul", f"{name}.gated", z, normal)
    return linear(b, f"{name}.out_proj", gated, f"batch seq {VALUES}, embed {VALUES} -> batch seq embed", False)


def normed_delta_rule(
    b: GraphBuilder, model: ModelSpec, name: str, inputs: tuple[str, ...], norm: str, eps: float | None = None
) -> str:
    """Append the gated delta rule and a norm of each head; returns the norm's output. name: of the linear attention.
    inputs: the rule's, in its order. norm: the family's name of it. eps: its own; None: as of the others."""
    dims, loops, linear = b.dims(inputs[2]), ("batch", "linear_key_head", "linear_group"), model.linear_attention
    assert linear is not None, model.name
    form: dict[str, Any] = {"beta_scale": 2.0} if linear.linear_allow_neg_eigval else {}
    if linear.kda_lower_bound is not None:
        form["lower_bound"] = linear.kda_lower_bound
    mixed = b.operator("gated_delta_rule", f"{name}.delta_rule", inputs, dims, loops, **form)
    b.module = "attention"
    weight, eps = b.parameter(f"{name}.{norm}.weight", "linear_valuedim"), eps or model.norm_eps
    return b.operator("norm", f"{name}.{norm}", (mixed, weight), dims, dims[:-1], function="rms", eps=eps)


def convolved(b: GraphBuilder, name: str, x: str) -> str:
    """Append a causal convolution of each number of x [batch, seq, heads...] with its own last tokens, and silu."""
    dims = b.dims(x)
    weight = b.parameter(f"{name}.weight", " ".join((*dims[2:], "linear_tap")))
    return b.operator("causal_conv", name, (x, weight), dims, ("batch", *dims[2:]))
