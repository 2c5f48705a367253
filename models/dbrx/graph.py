"""The graph of DBRX as operators over named dims. The fused Wqkv is written as its three projections."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual
from autoshard.models.llama.graph import (
    HEAD,
    HEADS,
    clipped,
    core_attention,
    cross_entropy,
    norm,
    output_projection,
    projections,
    rope,
    token_embedding,
    vocabulary,
)
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

TABLE = "transformer.wte.weight"


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    tokens = token_embedding(b, "transformer.wte", b.index_input("input_ids", "batch seq"), TABLE)
    return dropped_embedding(b, model, "transformer.emb_dropout", tokens)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"transformer.blocks.{layer}"
    name = f"{prefix}.norm_attn_norm"
    b.module = "attention_norm"
    h = norm(b, model, f"{name}.norm_1", x)
    b.module = "attention"
    out = _attention(b, model, h, f"{name}.attn", kernel)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{name}.resid_dropout"))
    b.module = "mlp_norm"
    h = norm(b, model, f"{name}.norm_2", x)
    b.module = "mlp"
    out = mixture(b, model, h, f"{prefix}.ffn", "mlp.w1", "mlp.v1", "mlp.w2", "router.layer")
    return residual(b, model, f"{prefix}.ffn_residual", x, (out, f"{prefix}.ffn.resid_dropout"))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = norm(b, model, "transformer.norm_f", x)
    return cross_entropy(b, model, vocabulary(b, model, HEAD, h, shared=TABLE))


def _attention(b: GraphBuilder, model: ModelSpec, h: str, name: str, kernel: str) -> str:
    """Append attention over the normalised h [batch, seq, embed], and return the output projection's output."""
    q, k, v = projections(b, model, name, h, HEADS)
    if (clip := model.attention_scores.clip_qkv) is not None:
        q, k, v = clipped(b, name, (q, k, v), clip)
    q, k = rope(b, model, f"{name}.q_rope", q), rope(b, model, f"{name}.k_rope", k)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    return output_projection(b, model, name, context, "out_proj")
