"""The graph of Qwen4-Exp's text model as operators over named dims: Qwen3.5's attention, linear or to pools of keys
that an indexer chooses, and its experts, in a residual of several streams.

    n = norm(streams)                                   of each stream by itself
    y = part(mean over streams of sigmoid(up(silu(down(n) / streams))) * n)
    stream k = stream k + 2 sigmoid(inject(n) / streams)[k] y

Before that, some blocks add to each stream what n-grams of tokens give: embeddings e from a table of their own,

    g = gate(value(e), norm(key(e)), norm(streams))     in each stream
    streams = streams + g + silu(convolution(norm(g)))
"""

from __future__ import annotations

from typing import Any

from autoshard.graph.ir import INDEX_BYTES, GraphBuilder
from autoshard.graph.stream_kinds import ONE_STREAM, SEVERAL_STREAMS, STREAM
from autoshard.models.hyper_connections import expanded, mean, repeated
from autoshard.models.llama.graph import HEAD, HIDDEN, cross_entropy, linear, self_attention, vocabulary
from autoshard.models.llama.graph import embedding as tokens
from autoshard.models.mixtral.graph import mixture
from autoshard.models.qwen.graph import shared_expert
from autoshard.models.qwen3_next.graph import linear_attention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION
from autoshard.spec.ngram_embedding import NgramEmbedding

STREAMS = " ".join(SEVERAL_STREAMS)
ROWS = "batch seq ngram_head ngram_dim"
"""Dims of the rows of a table that tokens have."""
MIXER = "model.hyper_connection_mixer"
"""Name of what the head reads streams with."""


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    return repeated(b, tokens(b, model))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    _, h = _read(b, model, MIXER, x)
    return cross_entropy(b, model, vocabulary(b, model, HEAD, h))


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    if (table := model.ngram_table_of(layer)) is not None:
        x = _with_ngrams(b, model, f"{prefix}.ple", x, table)
    b.module = "attention_norm"
    normal, h = _read(b, model, f"{prefix}.attn_hyper_connection", x)
    weights = _injected(b, model, f"{prefix}.attn_hyper_connection", normal)
    name = f"{prefix}.self_attn"
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        name = f"{prefix}.linear_attn"
        out = linear_attention(b, model, h, name)
    else:
        chosen = None if model.indexer is None else _chosen(b, model, f"{name}.indexer", h, layer)
        out = self_attention(b, model, h, layer, kernel, chosen=chosen)
    x = expanded(b, model, f"{prefix}.attention_residual", x, weights, (out, f"{name}.dropout"))
    b.module = "mlp_norm"
    normal, h = _read(b, model, f"{prefix}.mlp_hyper_connection", x)
    weights = _injected(b, model, f"{prefix}.mlp_hyper_connection", normal)
    b.module, name = "mlp", f"{prefix}.mlp"
    out = mixture(b, model, h, name, "gate_proj", "up_proj", "down_proj")
    if model.shared_expert_intermediate_size:
        shared = shared_expert(b, model, h, f"{name}.shared_expert", "shared_ffn")
        out = b.elementwise("add", f"{name}.sum", out, shared)
    return expanded(b, model, f"{prefix}.mlp_residual", x, weights, (out, f"{name}.dropout"))


def _normal(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append the RMS norm of each stream of x by itself, with weights of its own, and return it. name: of the norm."""
    weight = b.parameter(f"{name}.weight", f"{STREAM} embed")
    dims = b.dims(x)
    return b.operator("norm", name, (x, weight), dims, dims[:-1], function="rms", eps=model.norm_eps, unit_offset=True)


def _read(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> tuple[str, str]:
    """Append the norm of the streams x and their mean, each number of which has a weight; returns both. name: of the
    module."""
    normal = _normal(b, model, f"{name}.hc_norm", x)
    down = linear(
        b, f"{name}.input_mix_weight_down", normal, f"{STREAMS}, mix_rank {STREAM} embed -> batch seq mix_rank", False
    )
    low = b.pointwise(f"{name}.act_fn", f"(silu (mul {1 / model.num_streams!r} x0))", down)
    up = linear(
        b, f"{name}.input_mix_weight_up", low, f"batch seq mix_rank, {STREAM} embed mix_rank -> {STREAMS}", False
    )
    return normal, mean(b, f"{name}.mean", b.elementwise("sigmoid_mul", f"{name}.weighed", normal, up))


def _injected(b: GraphBuilder, model: ModelSpec, name: str, normal: str) -> str:
    """Append the weights with which each stream takes what a part of a block gives, and return them. name: of the
    module. normal: the norm of the streams."""
    made = linear(b, f"{name}.block_inject_weight", normal, f"{STREAMS}, pre {STREAM} embed -> batch seq pre", False)
    return b.pointwise(f"{name}.weights", f"(mul 2.0 (sigmoid (mul {1 / model.num_streams!r} x0)))", made)


def _chosen(b: GraphBuilder, model: ModelSpec, name: str, h: str, layer: int) -> str:
    """Append the choice of pools of keys, and return the mask [batch, seq, key]. h: [batch, seq, embed]. name: of the
    indexer."""
    indexer = model.indexer
    assert indexer is not None, model
    b.module = "attention"

    def weight(part: str, dims: str, is_matrix: bool) -> str:
        return b.parameter(f"{name}.{part}.weight", dims, learned=False, matrix=is_matrix)

    theta, scaling = model.rope_of(layer)
    return b.operator(
        "choose_means",
        name,
        (
            h,
            weight("q_proj", "index_head index_dim embed", True),
            weight("k_proj", "index_dim embed", True),
            weight("q_layernorm", "index_dim", False),
            weight("k_layernorm", "index_dim", False),
        ),
        ("batch", "seq", "key"),
        ("batch", "seq"),
        element_bytes=1,
        differentiable=False,
        top_k=indexer.index_topk,
        rate=indexer.index_kpool,
        eps=model.norm_eps,
        theta=theta,
        scaling=scaling,
        rotary_dim=model.rotary_dim,
    )


def _with_ngrams(b: GraphBuilder, model: ModelSpec, name: str, x: str, table: int) -> str:
    """Append what a block adds to the streams x for the n-grams of tokens, and return the sum. name: of the module.
    table: the number of its table."""
    ngrams = model.ngram_embedding
    assert ngrams is not None, model
    b.module = "residual"
    rows = _rows(b, model, ngrams, f"{name}.ple_embedding", table)
    keys = linear(b, f"{name}.key_proj", rows, f"{ROWS}, {STREAM} embed ngram_head ngram_dim -> {STREAMS}", False)
    value = linear(b, f"{name}.value_proj", rows, f"{ROWS}, embed ngram_head ngram_dim -> {HIDDEN}", False)
    keys, queries = _normal(b, model, f"{name}.norm_key", keys), _normal(b, model, f"{name}.norm_query", x)
    gated = b.operator("gate_streams", f"{name}.gated", (value, keys, queries), SEVERAL_STREAMS, ONE_STREAM[:2])
    weight = b.parameter(f"{name}.conv1d.weight", f"{STREAM} embed ngram_tap")
    convolved = b.operator(
        "causal_conv",
        f"{name}.conv1d",
        (_normal(b, model, f"{name}.norm_conv", gated), weight),
        SEVERAL_STREAMS,
        ("batch", STREAM, "embed"),
        dilation=ngrams.ngram_size,
    )
    return b.elementwise("add", f"{name}.residual", x, gated, convolved)


def _rows(b: GraphBuilder, model: ModelSpec, ngrams: NgramEmbedding, name: str, table: int) -> str:
    """Append the rows of a table that the n-grams of tokens have, and return them. name: of the module. table: its
    number."""
    own = ngrams.table(table, model.vocab_size)
    hashed: dict[str, Any] = {"factors": own.factors, "rows": own.rows, "eos": ngrams.eos_token_id}
    ids = b.operator(
        "hash_ngrams",
        f"{name}.hashed",
        (b.index_input("input_ids", "batch seq"),),
        ("batch", "seq", "ngram_head"),
        ("batch",),
        element_bytes=INDEX_BYTES,
        differentiable=False,
        **hashed,
    )
    weight = b.parameter(f"{name}.ngram_embedding.weight", f"ngram_part {rows_dim(table)} ngram_dim")
    # ranks may share the parts of a table, but not the rows of a part
    loops = ("batch", "seq", "ngram_head", "ngram_part", "ngram_dim")
    return b.operator("embedding", f"{name}.ngram_embedding", (ids, weight), tuple(ROWS.split()), loops)


def rows_dim(table: int) -> str:
    """The dim of the rows of a part of a table. table: its number."""
    return f"ngram_row{table}"
