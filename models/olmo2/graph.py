"""The graph of OLMo 2 and 3 and of EXAONE 4 as operators over named dims.

Norms stand behind attention and MLP, and over all heads, or over each head of EXAONE.
"""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import (
    HEADS,
    core_attention,
    embedding,
    gated_mlp,
    head,
    norm,
    output_projection,
    projections,
    rms_norm,
    rope,
)
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head", "normalized_attention"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    out = normalized_attention(b, model, x, layer, kernel)
    b.module = "attention_norm"
    out = norm(b, model, f"{prefix}.post_attention_layernorm", out)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
    b.module = "mlp"
    out = gated_mlp(b, model, x, f"{prefix}.mlp")
    b.module = "mlp_norm"
    out = norm(b, model, f"{prefix}.post_feedforward_layernorm", out)
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"))


def normalized_attention(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append attention whose queries have one norm over all heads, as its keys have, or each head where the model says
    so, and return the output projection's output. x: [batch, seq, embed]."""
    name = f"model.layers.{layer}.self_attn"
    b.module = "attention"
    q, k, v = projections(b, model, name, x, HEADS)
    if model.normalizes_heads:
        q, k = (rms_norm(b, model, f"{name}.{part}", x) for part, x in (("q_norm", q), ("k_norm", k)))
    else:
        q = norm_over_heads(b, model, f"{name}.q_norm", q, model.num_attention_heads)
        k = norm_over_heads(b, model, f"{name}.k_norm", k, model.num_key_value_heads)
    if model.has_rope(layer):
        q, k = rope(b, model, f"{name}.q_rope", q, layer), rope(b, model, f"{name}.k_rope", k, layer)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel, model.window_of(layer))
    return output_projection(b, model, name, context)


def norm_over_heads(b: GraphBuilder, model: ModelSpec, name: str, x: str, heads: int, groups: bool = False) -> str:
    """Append an RMS norm over all heads of x [batch, seq, heads, width of a head], and return its output.

    heads: as published; padding counts for nothing. A rank that has some of the heads sums squares with the others.
    groups: x has a dim of groups before its heads, and the norm is over those of each group.
    """
    dims = b.dims(x)
    over = dims[3:] if groups else dims[2:]
    weight = b.parameter(f"{name}.weight", " ".join(dims[2:]))
    return b.operator(
        "norm",
        name,
        (x, weight),
        dims,
        dims[:-1],
        function="rms",
        eps=model.norm_eps,
        over=over,
        width=heads * b.size(dims[-1]),
    )
