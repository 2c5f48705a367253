"""The graph of Llama 4's text models as operators over named dims."""

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
    rope,
    tempered,
)
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    b.module = "attention"
    out = _attention(b, model, h, layer, kernel)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    name = f"{prefix}.feed_forward"
    if not model.has_experts(layer):
        dense = gated_mlp(b, model, h, name, "dense_ffn")
        return residual(b, model, f"{prefix}.mlp_residual", x, (dense, f"{name}.dropout"))
    out = mixture(b, model, h, name, "gate_proj", "up_proj", "down_proj", "router", weighs_tokens=True)
    shared = gated_mlp(b, model, h, f"{name}.shared_expert", "shared_ffn")
    branches = (out, f"{name}.dropout"), (shared, f"{name}.shared_expert_dropout")
    return residual(b, model, f"{prefix}.mlp_residual", x, *branches)


def _attention(b: GraphBuilder, model: ModelSpec, h: str, layer: int, kernel: str) -> str:
    """Append attention over the normalised h [batch, seq, embed], and return the output projection's output."""
    name, form = f"model.layers.{layer}.self_attn", model.chunked_attention
    assert form is not None, model.name
    q, k, v = projections(b, model, name, h, HEADS)
    chunk = model.chunk_of(layer)
    if chunk is not None:
        q, k = (rope(b, model, f"{name}.{part}_rope", x) for part, x in (("q", q), ("k", k)))
        if form.use_qk_norm:
            q, k = (_normalized(b, model, f"{name}.{part}_norm", x) for part, x in (("q", q), ("k", k)))
    elif form.floor_scale is not None:
        q = tempered(b, f"{name}.q_temperature", q, form.floor_scale, form.attn_scale)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel, chunk=chunk)
    return output_projection(b, model, name, context)


def _normalized(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    dims = b.dims(x)
    return b.operator("norm", name, (x,), dims, dims[:-1], function="rms", eps=model.norm_eps)
