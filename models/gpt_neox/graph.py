"""The graph of GPT-NeoX as operators over named dims. The fused query_key_value is written as its three projections."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual
from autoshard.models.gpt2.graph import plain_mlp
from autoshard.models.llama.graph import (
    HEADS,
    core_attention,
    cross_entropy,
    norm,
    output_projection,
    projections,
    rope,
    token_embedding,
    vocabulary,
)
from autoshard.spec.model import ModelSpec

TABLE = "gpt_neox.embed_in.weight"
UP, DOWN = "dense_h_to_4h", "dense_4h_to_h"


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    tokens = token_embedding(b, "gpt_neox.embed_in", b.index_input("input_ids", "batch seq"), TABLE)
    return dropped_embedding(b, model, "gpt_neox.emb_dropout", tokens)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append x + attention(norm(x)) + mlp(norm(x)), and return its output. x: [batch, seq, embed].

    Without the parallel residual the MLP reads the sum of the first two.
    """
    prefix = f"gpt_neox.layers.{layer}"
    attended = (_attention(b, model, x, prefix, kernel), f"{prefix}.post_attention_dropout")
    if not model.use_parallel_residual:
        x = residual(b, model, f"{prefix}.attention_residual", x, attended)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    down = (plain_mlp(b, model, h, f"{prefix}.mlp", UP, DOWN), f"{prefix}.post_mlp_dropout")
    branches = (down, attended) if model.use_parallel_residual else (down,)
    return residual(b, model, f"{prefix}.residual", x, *branches)


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = norm(b, model, "gpt_neox.final_layer_norm", x)
    return cross_entropy(b, model, vocabulary(b, model, "embed_out", h, "embed_out.weight", TABLE))


def _attention(b: GraphBuilder, model: ModelSpec, x: str, prefix: str, kernel: str) -> str:
    name = f"{prefix}.attention"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    b.module = "attention"
    q, k, v = projections(b, model, name, h, HEADS)
    q, k = rope(b, model, f"{name}.q_rope", q), rope(b, model, f"{name}.k_rope", k)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    return output_projection(b, model, name, context, "dense")
