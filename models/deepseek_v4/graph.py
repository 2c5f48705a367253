"""The graph of DeepSeek-V4 as operators over named dims.

    q = rope(norm(up(norm(down(h)))))       k = v = rope(norm(kv(h)))        of all heads, one vector a token
    e = rope(norm(compressed h))            in most blocks, one vector for a piece of the sequence
    out = up(down(unrope(attention(q, k in the window and e))))              down: for each group of heads

Heads are laid out in the groups of the output projection: `kvhead` counts these, though no key has a head. Products of
what all heads share have no such dim: each tensor-parallel rank makes it of its part of the sequence, where that is
split, and it is gathered, as with latent attention.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from autoshard.graph.compressed_kinds import SERIES
from autoshard.graph.ir import GraphBuilder
from autoshard.graph.recompute import ATTENTION_UP
from autoshard.models.hyper_connections import collapsed, mixed, repeated
from autoshard.models.llama.graph import HIDDEN, linear, rms_norm, rope
from autoshard.models.llama.graph import embedding as tokens
from autoshard.models.llama.graph import head as normed_head
from autoshard.models.mixtral.graph import experts_or_mlp
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import COMPRESSED_SPARSE, HEAVILY_COMPRESSED

HEADS = "kvhead group headdim"
PIECES = {COMPRESSED_SPARSE: "sparse", HEAVILY_COMPRESSED: "heavy"}
"""Word of layer_types -> what the names of its pieces' dims begin with."""


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    return repeated(b, tokens(b, model))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    _, h = collapsed(b, model, "model.hc_head", x, writes=False)
    return normed_head(b, model, h)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"

    def attended(h: str) -> tuple[str, str]:
        return attention(b, model, h, layer, kernel), f"{prefix}.self_attn.dropout"

    x = mixed(b, model, prefix, "attention", x, attended)
    return mixed(b, model, prefix, "mlp", x, partial(experts_or_mlp, b, model, layer=layer))


def attention(b: GraphBuilder, model: ModelSpec, h: str, layer: int, kernel: str) -> str:
    """Append attention to h [batch, seq, embed], and return its output projection's output. layer: place of the block.
    kernel: 'flash' or 'plain'."""
    name, pieces = f"model.layers.{layer}.self_attn", PIECES.get(model.mixer_of(layer))
    b.module = "attention"
    down = linear(b, f"{name}.q_a_proj", h, f"{HIDDEN}, q_rank embed -> batch seq q_rank", bias=False)
    kv = linear(b, f"{name}.kv_proj", h, f"{HIDDEN}, headdim embed -> batch seq headdim", bias=False)
    c = rms_norm(b, model, f"{name}.q_a_norm", down)
    keys = _turned(b, model, f"{name}.k_rope", rms_norm(b, model, f"{name}.kv_norm", kv), layer)
    seen: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}
    if pieces is not None:
        seen = (_entries(b, model, f"{name}.compressor", h, layer, pieces),)
        attributes["rate"] = b.size(f"{pieces}_rate")
    if model.mixer_of(layer) == COMPRESSED_SPARSE:
        seen += (_indexer(b, model, f"{name}.compressor.indexer", h, c, layer),)
    b.module = ATTENTION_UP
    q = linear(b, f"{name}.q_b_proj", c, f"batch seq q_rank, {HEADS} q_rank -> batch seq {HEADS}", bias=False)
    q = _turned(b, model, f"{name}.q_rope", rms_norm(b, model, f"{name}.q_b_norm", q, weighs=False), layer)
    b.module = "core_attention"
    own = model.heads[0]
    if b.size("group") > own.num_query_groups:
        attributes["valid_group"] = own.num_query_groups
    context = b.operator(
        "compressed_attention",
        f"{name}.core_attention",
        (q, keys, b.parameter(f"{name}.sinks", "kvhead group"), *seen),
        b.dims(q),
        b.dims(q)[:-1],
        kernel=kernel,
        sliding_window=model.sliding_window,
        **attributes,
    )
    b.module = "attention"
    # values were turned as keys are: what a query gets of them turns back by its own place
    context = _turned(b, model, f"{name}.output_rope", context, layer, backwards=True)
    expression = f"batch seq {HEADS}, kvhead o_rank group headdim -> batch seq kvhead o_rank"
    grouped = linear(b, f"{name}.o_a_proj", context, expression, bias=False)
    return linear(
        b, f"{name}.o_b_proj", grouped, "batch seq kvhead o_rank, embed kvhead o_rank -> " + HIDDEN, bias=False
    )


def _turned(b: GraphBuilder, model: ModelSpec, name: str, x: str, layer: int, **more: Any) -> str:
    """Append rotary positions of a block, which turn the end of x's last dim, and return the output. more: further
    attributes of the operator."""
    first = b.size(b.dims(x)[-1]) - model.rotary_dim
    return rope(b, model, name, x, layer, first_rotary=first, **more)


def _entries(b: GraphBuilder, model: ModelSpec, name: str, h: str, layer: int, pieces: str) -> str:
    """Append the entries of a block, [batch, entry, headdim], and return them. h: [batch, seq, embed]. pieces: as in
    PIECES; the entries of sparse ones overlap."""
    width = f"{SERIES} headdim" if pieces == PIECES[COMPRESSED_SPARSE] else "headdim"
    values, gates = (
        linear(b, f"{name}.{part}", h, f"{HIDDEN}, {width} embed -> batch seq {width}", bias=False)
        for part in ("kv_proj", "gate_proj")
    )
    bias = b.parameter(f"{name}.position_bias", f"{pieces}_rate {width}", matrix=False)
    dims, rate = ("batch", f"{pieces}_entry", "headdim"), b.size(f"{pieces}_rate")
    loops = ("batch", "headdim")
    entries = b.operator("compress", f"{name}.entries", (values, gates, bias), dims, loops, None, rate=rate)
    entries = rms_norm(b, model, f"{name}.kv_norm", entries)
    return _turned(b, model, f"{name}.rope", entries, layer, every=rate)


def _indexer(b: GraphBuilder, model: ModelSpec, name: str, h: str, c: str, layer: int) -> str:
    """Append the choice of the entries that each query sees, and return the mask [batch, seq, entry]. h: [batch, seq,
    embed]. c: compressed queries [batch, seq, q_rank]."""
    compressed = model.compressed_attention
    assert compressed is not None, model

    def weight(part: str, dims: str, matrix: bool = True) -> str:
        return b.parameter(f"{name}.{part}", dims, learned=False, matrix=matrix)

    theta, scaling = model.rope_of(layer)
    rows = ("batch", "seq")
    return b.operator(
        "choose_entries",
        name,
        (
            h,
            c,
            weight("q_b_proj.weight", "index_head index_dim q_rank"),
            weight("scorer.weights_proj.weight", "index_head embed"),
            weight("kv_proj.weight", f"{SERIES} index_dim embed"),
            weight("gate_proj.weight", f"{SERIES} index_dim embed"),
            weight("position_bias", f"sparse_rate {SERIES} index_dim", matrix=False),
            weight("kv_norm.weight", "index_dim", matrix=False),
        ),
        (*rows, "sparse_entry"),
        rows,
        element_bytes=1,
        differentiable=False,
        top_k=compressed.index_topk,
        rate=compressed.sparse_rate,
        eps=model.norm_eps,
        theta=theta,
        scaling=scaling,
        rotary_dim=model.rotary_dim,
        interleaved=model.family.turns_neighbours,
        first_rotary=compressed.index_head_dim - model.rotary_dim,
    )
