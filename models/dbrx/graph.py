"""The graph of DBRX as operators over named dims. The fused Wqkv is written as its three projections."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual
from autoshard.models.llama.graph import HIDDEN, core_attention, cross_entropy, linear, rope
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    table = b.parameter("transformer.wte.weight", "vocab embed")
    ids = b.index_input("input_ids", "batch seq")
    tokens = b.operator(
        "embedding", "transformer.wte", (ids, table), ("batch", "seq", "embed"), ("batch", "seq", "vocab", "embed")
    )
    return dropped_embedding(b, model, "transformer.emb_dropout", tokens)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"transformer.blocks.{layer}"
    name = f"{prefix}.norm_attn_norm"
    b.module = "attention_norm"
    h = _layer_norm(b, model, f"{name}.norm_1", x)
    b.module = "attention"
    out = _attention(b, model, h, f"{name}.attn", kernel)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{name}.resid_dropout"))
    b.module = "mlp_norm"
    h = _layer_norm(b, model, f"{name}.norm_2", x)
    b.module = "mlp"
    out = mixture(b, model, h, f"{prefix}.ffn", "mlp.w1", "mlp.v1", "mlp.w2", "router.layer")
    return residual(b, model, f"{prefix}.ffn_residual", x, (out, f"{prefix}.ffn.resid_dropout"))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = _layer_norm(b, model, "transformer.norm_f", x)
    table = b.parameter("lm_head.weight", "vocab embed")
    return cross_entropy(b, model, b.einsum("lm_head", f"{HIDDEN}, vocab embed -> batch seq vocab", h, table))


def _attention(b: GraphBuilder, model: ModelSpec, h: str, name: str, kernel: str) -> str:
    """Append attention over the normalised h [batch, seq, embed], and return the output projection's output."""
    heads = {"q_proj": "kvhead group headdim", "k_proj": "kvhead headdim", "v_proj": "kvhead headdim"}
    # the products first: behind one another, they share one gathered input
    products = {
        part: linear(b, f"{name}.{part}", h, f"{HIDDEN}, {dims} embed -> batch seq {dims}", False)
        for part, dims in heads.items()
    }
    clip = model.attention_scores.clip_qkv
    if clip is not None:
        cut = f"(maximum (minimum x0 {clip!r}) {-clip!r})"
        products = {part: b.pointwise(f"{name}.{part}_clip", cut, product) for part, product in products.items()}
    q, k, v = products.values()
    q, k = rope(b, model, f"{name}.q_rope", q), rope(b, model, f"{name}.k_rope", k)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    b.module = "attention"
    expression = "batch seq kvhead group headdim, embed kvhead group headdim -> batch seq embed"
    return linear(b, f"{name}.out_proj", context, expression, False)


def _layer_norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append a LayerNorm with weights and without biases, and return its output."""
    weight, dims = b.parameter(f"{name}.weight", "embed"), b.dims(x)
    return b.operator("norm", name, (x, weight), dims, dims[:2], function="layer", eps=model.norm_eps)
