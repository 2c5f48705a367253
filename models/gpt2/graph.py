"""GPT-2/3 as operators over named dims. The fused c_attn is written as its three projections."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import HIDDEN, core_attention, cross_entropy
from autoshard.spec.model import ModelSpec


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    ids = b.index_input("input_ids", "batch seq")
    tokens = b.operator(
        "embedding",
        "transformer.wte",
        (ids, b.parameter("transformer.wte.weight", "vocab embed")),
        ("batch", "seq", "embed"),
        ("batch", "seq", "vocab", "embed"),
    )
    positions = b.parameter("transformer.wpe.weight", "position embed")
    dims = b.dims(tokens)
    return b.operator("position_embedding", "transformer.wpe", (tokens, positions), dims, dims)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"transformer.h.{layer}"
    x = _attention(b, model, x, prefix, kernel)
    b.module = "mlp_norm"
    h = _layer_norm(b, model, f"{prefix}.ln_2", x)
    b.module = "mlp"
    up = _linear(b, f"{prefix}.mlp.c_fc", h, "batch seq embed, ffn embed -> batch seq ffn", "ffn")
    act = b.elementwise("gelu", f"{prefix}.mlp.act", up)
    down = _linear(b, f"{prefix}.mlp.c_proj", act, "batch seq ffn, embed ffn -> batch seq embed", "embed")
    b.module = "residual"
    return b.elementwise("add", f"{prefix}.mlp_residual", x, down)


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = _layer_norm(b, model, "transformer.ln_f", x)
    table = "transformer.wte.weight" if model.tie_word_embeddings else "lm_head.weight"
    logits = b.einsum("lm_head", f"{HIDDEN}, vocab embed -> batch seq vocab", h, b.parameter(table, "vocab embed"))
    return cross_entropy(b, model, logits)


def _attention(b: GraphBuilder, model: ModelSpec, x: str, prefix: str, kernel: str) -> str:
    name = f"{prefix}.attn"
    b.module = "attention_norm"
    h = _layer_norm(b, model, f"{prefix}.ln_1", x)
    b.module = "attention"
    heads = {"q": "kvhead group headdim", "k": "kvhead headdim", "v": "kvhead headdim"}
    products = {
        part: b.einsum(
            f"{name}.{part}_proj.matmul",
            f"{HIDDEN}, {dims} embed -> batch seq {dims}",
            h,
            b.parameter(f"{name}.{part}_proj.weight", f"{dims} embed"),
        )
        for part, dims in heads.items()
    }
    q, k, v = (
        b.elementwise("add", f"{name}.{part}_proj", product, b.parameter(f"{name}.{part}_proj.bias", heads[part]))
        for part, product in products.items()
    )
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    b.module = "attention"
    expression = "batch seq kvhead group headdim, embed kvhead group headdim -> batch seq embed"
    out = _linear(b, f"{name}.c_proj", context, expression, "embed")
    b.module = "residual"
    return b.elementwise("add", f"{prefix}.attention_residual", x, out)


def _linear(b: GraphBuilder, name: str, x: str, expression: str, out_dims: str) -> str:
    """Matrix product plus bias; a contracted split is summed before the bias is added, once."""
    weight_dims = expression.split(",")[1].split("->")[0].strip()
    product = b.einsum(f"{name}.matmul", expression, x, b.parameter(f"{name}.weight", weight_dims))
    return b.elementwise("add", name, product, b.parameter(f"{name}.bias", out_dims))


def _layer_norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    weight, bias = (b.parameter(f"{name}.{part}", "embed") for part in ("weight", "bias"))
    dims = b.dims(x)
    return b.operator("norm", name, (x, weight, bias), dims, dims[:2], function="layer", eps=model.norm_eps)
