"""The graph of Nemotron as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import (
    FINAL_NORM,
    HEAD,
    HIDDEN,
    cross_entropy,
    embedding,
    linear,
    self_attention,
    vocabulary,
    with_bias,
)
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head", "squared_mlp"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = _layer_norm(b, model, f"{prefix}.input_layernorm", x)
    out = self_attention(b, model, h, layer, kernel)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
    b.module = "mlp_norm"
    h = _layer_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    out = squared_mlp(b, model, h, f"{prefix}.mlp")
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    return cross_entropy(b, model, vocabulary(b, model, HEAD, _layer_norm(b, model, FINAL_NORM, x)))


def squared_mlp(b: GraphBuilder, model: ModelSpec, h: str, name: str) -> str:
    """Append down(relu(up(h))^2), and return its output. h: [batch, seq, embed]."""
    bias = model.mlp_bias
    up = linear(b, f"{name}.up_proj", h, f"{HIDDEN}, ffn embed -> batch seq ffn", bias)
    up = with_bias(b, f"{name}.up_proj", up, "ffn", bias)
    act = b.pointwise(f"{name}.act_fn", "(square (relu x0))", up)
    down = linear(b, f"{name}.down_proj", act, "batch seq ffn, embed ffn -> batch seq embed", bias)
    return with_bias(b, f"{name}.down_proj", down, "embed", bias)


def _layer_norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append a LayerNorm that multiplies by 1 plus its weight, and return its output."""
    weight, bias = (b.parameter(f"{name}.{part}", "embed") for part in ("weight", "bias"))
    dims = b.dims(x)
    return b.operator(
        "norm", name, (x, weight, bias), dims, dims[:2], function="layer", eps=model.norm_eps, unit_offset=True
    )
