"""Multi-head latent attention as operators over named dims.

    q = rope(up(norm(down(h))))             or up(h) where queries are not compressed
    c, r = down(h)                          one vector for all keys and values, and the part of keys that positions turn
    k = [up(norm(c)), rope(r) for all heads]    v = up(norm(c))

In blocks without positions nothing turns; a family that has them in no block may have no r, and another one has none
in these blocks. Queries may be multiplied by a function of their place. Attention's output may be multiplied by a gate
of each head, or of each of its numbers, made of h, and heads may have sinks. With an indexer, a query sees no keys but
those that it chooses by h and norm(down(h)) of the query, or by h alone. A block may take norm(c) and rope(r) of an
earlier one.

The products that make compressed vectors have no dim of heads: each tensor-parallel rank has them whole, works on its
part of the sequence where that is split, and the gradients are summed. The products behind them split heads, and gather
the compressed vectors, which are narrow. They are the module `attention_up`: run again in backward, only compressed
vectors stay.
"""

from __future__ import annotations

from typing import Any

from autoshard.graph.attention_kind import KEY
from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import HIDDEN, core_attention, gated_output, linear, norm, tempered
from autoshard.spec.indexer import Indexer
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import EACH_HEAD, EACH_NUMBER

NORM_EPS = 1e-6
"""Of the norms of compressed vectors, where a family has no other: transformers' default, and DeepSeek's own code."""
QUERIES, VALUES = "kvhead group headdim", "kvhead group valuedim"
EXPONENTS = "model.rotary_emb.alpha"
"""The tensor by whose exp rotary frequencies are multiplied (LeRoPE); one for all blocks."""
QUERY_SCALE = "softmax_scaling"
"""Before the names of both numbers of a head by which its queries grow with their place."""
GATES = {EACH_HEAD: "kvhead group", EACH_NUMBER: VALUES}
"""The family's gates_attention -> dims of the gate, besides batch and seq."""


def has_turned_part(model: ModelSpec, layer: int) -> bool:
    """Whether the heads of a block share the part of their keys that positions turn, in the families that turn some of
    it in such a block; where they do not, each head has a whole key."""
    latent = model.latent_attention
    assert latent is not None, model
    return latent.qk_rope_head_dim > 0 and (model.has_rope(layer) or not model.family.has_whole_nope_keys)


def key_dims(model: ModelSpec, layer: int) -> tuple[str, str]:
    """(the dim of what is made for keys and values of all heads; the dims of what they make of it)."""
    if has_turned_part(model, layer):
        return "kv_a", "kvhead kv_b"
    latent = model.latent_attention
    assert latent is not None, model
    return "kv_rank", "kvhead kv_b" if latent.qk_rope_head_dim == 0 else "kvhead kv_whole"


def latent_attention(
    b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str, norm_eps: float = NORM_EPS
) -> str:
    """Append norm, latent attention and residual; returns the sum's name.

    x: [batch, seq, embed]. layer: place of the block. kernel: of attention, 'flash' or 'plain'. norm_eps: as of
    `attended`.
    """
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    out = attended(b, model, h, layer, kernel, norm_eps)
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))


def attended(
    b: GraphBuilder,
    model: ModelSpec,
    h: str,
    layer: int,
    kernel: str,
    norm_eps: float = NORM_EPS,
    prefix: str = "",
    is_scaled: bool = False,
) -> str:
    """Append latent attention to h [batch, seq, embed], and return its output projection's output. layer, kernel: as of
    `latent_attention`. norm_eps: of the norms of compressed vectors. prefix: of its name, where that is not the block's
    alone. is_scaled: whether compressed vectors, as they are normed, are multiplied by the root of the hidden size over
    their width."""
    latent = model.latent_attention
    assert latent is not None, model
    name, has_turned = f"{prefix or f'model.layers.{layer}'}.self_attn", has_turned_part(model, layer)
    b.module = "attention"
    compressed, (width, keys) = f"{name}.kv_a_proj_with_mqa", key_dims(model, layer)
    if latent.q_lora_rank is None:
        made_of, source, up = h, "embed", "q_proj"
    else:
        down = linear(b, f"{name}.q_a_proj", h, f"{HIDDEN}, q_rank embed -> batch seq q_rank", bias=False)
        made_of, source, up = down, "q_rank", "q_b_proj"
    if model.shares_keys(layer):
        other = f"model.layers.{model.keys_of(layer)}.self_attn"
        c = b.earlier(f"{other}.kv_a_layernorm", "batch seq kv_rank")
        if has_turned:
            turned = b.earlier(f"{other}.k_rope", "batch seq ropedim")
    else:
        c = both = linear(b, compressed, h, f"{HIDDEN}, {width} embed -> batch seq {width}", bias=False)
        if has_turned:
            c = _slice(b, f"{compressed}.compressed", both, "kv_rank", 0)
            turned = _slice(b, f"{compressed}.rotary", both, "ropedim", latent.kv_lora_rank)
            if model.has_rope(layer):
                turned = _rope(b, model, f"{name}.k_rope", turned)
    if latent.q_lora_rank is not None:
        made_of = _norm(b, f"{name}.q_a_layernorm", made_of, norm_eps)
    if not model.shares_keys(layer):
        c = _norm(b, f"{name}.kv_a_layernorm", c, norm_eps)
    if is_scaled:
        c = b.scaled(f"{name}.kv_a_scaled", c, (model.hidden_size / latent.kv_lora_rank) ** 0.5)
        if latent.q_lora_rank is not None:
            made_of = b.scaled(f"{name}.q_a_scaled", made_of, (model.hidden_size / latent.q_lora_rank) ** 0.5)
    chosen = None if model.indexer is None else _chosen(b, model, model.indexer, layer, h, made_of)
    b.module = "attention_up"
    q = linear(b, f"{name}.{up}", made_of, f"batch seq {source}, {QUERIES} {source} -> batch seq {QUERIES}", bias=False)
    if model.has_rope(layer):
        q = _rope(b, model, f"{name}.q_rope", q, b.size("nopedim"))
    if (beta := model.attention_scores.llama_4_scaling_beta) is not None:
        q = tempered(b, f"{name}.q_temperature", q, model.original_positions, beta, first=0)
    if model.family.scales_queries:
        q = _grown(b, f"{name}.{QUERY_SCALE}", q)
    kv = linear(b, f"{name}.kv_b_proj", c, f"batch seq kv_rank, {keys} kv_rank -> batch seq {keys}", bias=False)
    own = "nopedim" if has_turned else "headdim"
    v = _slice(b, f"{name}.kv_b_proj.values", kv, "valuedim", b.size(own))
    k = _slice(b, f"{name}.kv_b_proj.keys", kv, own, 0)
    if has_turned:
        rows = ("batch", "seq", "kvhead")
        k = b.operator("concat", f"{name}.keys", (k, turned), (*rows, "headdim"), rows)
    b.module = "core_attention"
    sinks = b.parameter(f"{name}.sinks", "kvhead group") if model.has_sinks(layer) else None
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel, sinks=sinks, chosen=chosen)
    b.module = "attention"
    if model.family.gates_attention is not None:
        dims = GATES[model.family.gates_attention]
        gate = linear(b, f"{name}.gate_proj", h, f"{HIDDEN}, {dims} embed -> batch seq {dims}", bias=False)
        context = gated_output(b, model, f"{name}.gated", context, gate)
    return linear(b, f"{name}.o_proj", context, f"batch seq {VALUES}, embed {VALUES} -> batch seq embed", bias=False)


def _chosen(b: GraphBuilder, model: ModelSpec, indexer: Indexer, layer: int, h: str, compressed: str) -> str:
    """The mask of the keys that each query of a block sees: the output of its indexer, which is appended, or of the
    indexer of the block that chooses for it. h, compressed: as of `_indexer`."""
    chooser = model.chooser_of(layer)
    name = model.choice_of(layer)
    if chooser != layer:  # all that see it keep one mask
        return b.mask_input(name, f"batch seq {KEY}", counted=chooser == layer - 1)
    made_of = h if model.family.indexes_hidden_state else compressed
    return _indexer(b, model, indexer, name, h, made_of, model.has_rope(layer) or not model.family.has_whole_nope_keys)


def _indexer(b: GraphBuilder, model: ModelSpec, indexer: Indexer, name: str, h: str, made_of: str, turns: bool) -> str:
    """Append the choice of the keys that each query sees, and return the mask [batch, seq, key].

    h: [batch, seq, embed]. made_of: what queries are made of, h itself or compressed queries [batch, seq, q_rank].
    turns: whether positions turn queries and keys, if no pools are scored.
    """
    latent, family = model.latent_attention, model.family
    assert latent is not None, model

    def weight(part: str, dims: str, is_matrix: bool) -> str:
        return b.parameter(f"{name}.{part}", dims, learned=False, matrix=is_matrix)

    source = b.dims(made_of)[-1]
    inputs: tuple[str, ...] = (
        weight("wq_b.weight", f"index_head index_dim {source}", True),
        weight("wk.weight", "index_dim embed", True),
        weight("k_norm.weight", "index_dim", False),
        weight("k_norm.bias", "index_dim", False),
        weight("weights_proj.weight", "index_head embed", True),
    )
    kind, form = "choose_keys", dict[str, Any]()
    if indexer.index_kpool is None:
        form = {"theta": model.rope_theta, "scaling": model.rope_scaling}
        form["rotary_dim"] = latent.qk_rope_head_dim if turns else 0
        form["interleaved"] = indexer.indexer_rope_interleave
        if indexer.turns_end:
            form["first_rotary"] = indexer.index_head_dim - latent.qk_rope_head_dim
    else:
        kind, form = "choose_pools", {"rate": indexer.index_kpool}
        gate = weight("index_kpool_compress_gate", "index_dim embed", True)
        inputs = (*inputs, gate, weight("index_kpool_compress_ape", "index_pool index_dim", False))
    if family.indexes_hidden_state:
        form["norms"] = True
        inputs = (*inputs, *(weight(f"q_input_norm.{part}", source, False) for part in ("weight", "bias")))
    if family.scales_queries:
        form["grows"] = True
        inputs = (*inputs, *(weight(f"{QUERY_SCALE}.{part}", "index_head", False) for part in ("scale", "bias")))
    if family.scales_frequencies and turns:
        form["scales"] = True
        inputs = (*inputs, exponents(b))
    rows = ("batch", "seq")
    return b.operator(
        kind,
        name,
        (h, made_of, *inputs),
        (*rows, KEY),
        rows,
        element_bytes=1,
        differentiable=False,
        top_k=indexer.index_topk,
        eps=indexer.key_norm_eps,
        **form,
    )


def exponents(b: GraphBuilder) -> str:
    """The parameter by whose exp rotary frequencies are multiplied."""
    return b.parameter(EXPONENTS, "ropepair", learned=False)


def _grown(b: GraphBuilder, name: str, q: str) -> str:
    """Append the product of queries with a function of their place's logarithm, and return it. name: before those of
    both numbers of a head."""
    dims = b.dims(q)
    numbers = (b.parameter(f"{name}.{part}", " ".join(dims[2:-1])) for part in ("scale", "bias"))
    return b.operator("log_scale", name, (q, *numbers), dims, dims[:-1])


def _norm(b: GraphBuilder, name: str, x: str, eps: float) -> str:
    """Append the RMS norm of a compressed vector, and return its output."""
    dims = b.dims(x)
    weight = b.parameter(f"{name}.weight", dims[-1])
    return b.operator("norm", name, (x, weight), dims, dims[:-1], function="rms", eps=eps)


def _slice(b: GraphBuilder, name: str, x: str, dim: str, first: int) -> str:
    """Append a copy of a range of x's last dim as the dim `dim`, and return its name. first: where it begins."""
    rows = b.dims(x)[:-1]
    return b.operator("slice", name, (x,), (*rows, dim), rows, first=first)


def _rope(b: GraphBuilder, model: ModelSpec, name: str, x: str, first: int = 0) -> str:
    """Append rotary positions of queries, or of the part of keys that they turn. first: the first number that turns."""
    latent = model.latent_attention
    assert latent is not None, model
    dims = b.dims(x)
    scaled = model.family.scales_frequencies
    return b.operator(
        "scaled_rope" if scaled else "rope",
        name,
        (x, exponents(b)) if scaled else (x,),
        dims,
        dims[:-1],
        theta=model.rope_theta,
        scaling=model.rope_scaling,
        rotary_dim=latent.qk_rope_head_dim,
        interleaved=latent.rope_interleave,
        first_rotary=first,
    )
