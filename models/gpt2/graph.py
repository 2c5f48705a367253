"""The graph of GPT-2 and GPT-3 as operators over named dims. The fused c_attn is written as its three projections."""

from __future__ import annotations

from autoshard.graph import xielu
from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual
from autoshard.models.llama.graph import (
    HEAD,
    HEADS,
    HIDDEN,
    core_attention,
    cross_entropy,
    linear,
    norm,
    output_projection,
    projections,
    token_embedding,
    vocabulary,
    with_bias,
)
from autoshard.spec.model import ModelSpec

TABLE = "transformer.wte.weight"


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    tokens = token_embedding(b, "transformer.wte", b.index_input("input_ids", "batch seq"), TABLE)
    positions = b.parameter("transformer.wpe.weight", "position embed")
    dims = b.dims(tokens)
    x = b.operator("position_embedding", "transformer.wpe", (tokens, positions), dims, dims)
    return dropped_embedding(b, model, "transformer.drop", x)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"transformer.h.{layer}"
    x = _attention(b, model, x, prefix, kernel)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.ln_2", x)
    b.module = "mlp"
    down = plain_mlp(b, model, h, f"{prefix}.mlp", "c_fc", "c_proj")
    return residual(b, model, f"{prefix}.mlp_residual", x, (down, f"{prefix}.mlp.dropout"))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = norm(b, model, "transformer.ln_f", x)
    return cross_entropy(b, model, vocabulary(b, model, HEAD, h, shared=TABLE))


def _attention(b: GraphBuilder, model: ModelSpec, x: str, prefix: str, kernel: str) -> str:
    name = f"{prefix}.attn"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.ln_1", x)
    b.module = "attention"
    q, k, v = projections(b, model, name, h, HEADS)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    out = output_projection(b, model, name, context, "c_proj")
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{name}.resid_dropout"))


def plain_mlp(
    b: GraphBuilder, model: ModelSpec, h: str, name: str, up_name: str, down_name: str, ffn: str = "ffn"
) -> str:
    """Append down(gelu(up(h))), or with the square of a ReLU or with xIELU, and return its output. h: [batch, seq,
    embed]. ffn: the dim of up."""
    bias = model.mlp_bias
    up = linear(b, f"{name}.{up_name}", h, f"{HIDDEN}, {ffn} embed -> batch seq {ffn}", bias)
    act = activated(b, model, name, with_bias(b, f"{name}.{up_name}", up, ffn, bias))
    down = linear(b, f"{name}.{down_name}", act, f"batch seq {ffn}, embed {ffn} -> batch seq embed", bias)
    return with_bias(b, f"{name}.{down_name}", down, "embed", bias)


def activated(b: GraphBuilder, model: ModelSpec, name: str, up: str) -> str:
    """Append the activation of an MLP without a gate, and return its output. name: of the MLP."""
    if model.hidden_act == "relu2":
        return b.pointwise(f"{name}.act_fn", "(square (relu x0))", up)
    if model.learns_activation:
        numbers = (b.parameter(f"{name}.act_fn.{part}", "", learned=part in xielu.LEARNED) for part in xielu.PARTS)
        return b.pointwise(f"{name}.act_fn", xielu.EXPRESSION, up, *numbers)
    return b.elementwise("gelu_erf" if model.hidden_act == "gelu" else "gelu", f"{name}.act", up)
