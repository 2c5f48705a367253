"""Write the graph of one pipeline stage of any model: embedding, a range of blocks, head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil

from autoshard.errors import AutoshardError
from autoshard.graph.adapters import RANK, with_adapters
from autoshard.graph.adapters import linear_layers as adaptable
from autoshard.graph.attention_kind import KEY, KEY_BLOCK
from autoshard.graph.compressed_kinds import SERIES
from autoshard.graph.ir import Graph, GraphBuilder, Tensor
from autoshard.graph.orthogonal import orthogonal
from autoshard.graph.recompute import name_in_block
from autoshard.graph.stream_kinds import STREAM
from autoshard.models.families import FAMILIES, graph_of
from autoshard.models.hyper_connections import residual_dims, stream_sizes
from autoshard.models.padding import heads_of_kinds, multiple_of, padded_width
from autoshard.models.plugin_family import check_family
from autoshard.models.prediction import JOINED, prediction
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.linear_attention import Mamba
from autoshard.spec.model import ModelSpec
from autoshard.spec.ngram_embedding import NgramEmbedding
from autoshard.spec.traced import HIDDEN

VOCABULARY_MULTIPLE = 8
"""Padded vocabularies are a multiple of this on every rank: Megatron's and NxD's make_vocab_size_divisible_by."""


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """The size of the vocabulary as stored: unchanged if tp divides it, else padded to a multiple of 8 tp."""
    if vocab_size % tp == 0:
        return vocab_size
    return multiple_of(vocab_size, VOCABULARY_MULTIPLE * tp)


def dim_sizes(model: ModelSpec, batch: int, seq: int, tp: int = 1, capacity_factor: float = 1.0) -> dict[str, int]:
    """Global size of every dim for one microbatch; heads, inner widths and vocabulary are padded where tp does not
    divide.

    batch: sequences of all data-parallel replicas. capacity_factor: slots of an expert over its even share of a
    sequence's tokens; num_candidates / num_experts_per_tok gives every token a slot whatever the router does.
    """
    sizes = {"batch": batch, "seq": seq, "embed": model.hidden_size}
    for own, heads in zip(model.heads, heads_of_kinds(model, tp), strict=True):
        sizes |= dict(zip(own.query_dims[:2], (heads.key_value, heads.groups), strict=True)) | own.sizes
    sizes |= {
        "ffn": padded_width(model, model.intermediate_size, tp),
        "vocab": padded_vocab_size(model.vocab_size, tp),
    }
    if model.rope_theta is None:
        sizes["position"] = model.max_position_embeddings
    if model.num_local_experts:
        sizes["expert"] = model.num_local_experts
        sizes["capacity"] = ceil(routed_tokens(model, seq) * capacity_factor)
    if model.zero_expert_num:
        sizes["candidate"] = model.num_candidates
    if model.moe_latent_size is not None:
        sizes["latent"] = model.moe_latent_size
    if model.shared_expert_intermediate_size:
        sizes["shared_ffn"] = padded_width(model, model.shared_expert_intermediate_size, tp)
    if model.dense_intermediate_size:
        sizes["dense_ffn"] = padded_width(model, model.dense_intermediate_size, tp)
    if model.hidden_size_per_layer_input is not None:
        sizes["layer_input"] = model.hidden_size_per_layer_input
    if model.multi_token_prediction is not None:
        sizes[JOINED] = 2 * model.hidden_size
    if model.latent_attention is not None:
        sizes.update(_latent_sizes(model, model.latent_attention))
    if (compressed := model.compressed_attention) is not None:
        sizes.update(_compressed_sizes(compressed, seq))
    if (hyper := model.hyper_connections) is not None:
        sizes |= stream_sizes(hyper)
    if (gated := model.gated_residual) is not None:
        sizes |= {STREAM: gated.hc_count, "pre": gated.hc_count, "mix_rank": gated.hc_lowrank}
    if (ngrams := model.ngram_embedding) is not None:
        sizes |= _ngram_sizes(model, ngrams, tp)
    if model.family.hashes_tokens:
        sizes |= {"token": model.vocab_size, "choice": model.num_experts_per_tok}
    if (indexer := model.indexer) is not None:
        sizes |= {"index_head": indexer.index_n_heads, "index_dim": indexer.index_head_dim, KEY: seq}
        if indexer.index_kpool is not None:
            sizes |= {"index_pool": indexer.index_kpool, "pooled_key": max(1, seq // indexer.index_kpool)}
    if (blocks := model.block_indexer) is not None:
        sizes |= {"index_dim": blocks.index_head_dim, KEY_BLOCK: ceil(seq / blocks.index_block_size)}
    if (linear := model.linear_attention) is not None:
        sizes |= {
            "linear_key_head": padded_width(model, linear.linear_num_key_heads, tp),
            "linear_group": linear.values_per_key,
            "linear_keydim": linear.linear_key_head_dim,
            "linear_valuedim": linear.linear_value_head_dim,
            "linear_rank": linear.linear_key_head_dim,
            "linear_tap": linear.linear_conv_kernel_dim,
        }
    if model.lightning_attention is not None:
        sizes["lightning_head"] = padded_width(model, model.num_attention_heads, tp)
    if (mamba := model.mamba) is not None:
        sizes |= {
            **_mamba_heads(model, mamba, tp),
            "mamba_headdim": mamba.mamba_d_head,
            "mamba_state": mamba.mamba_d_state,
            "mamba_tap": mamba.mamba_d_conv,
        }
    if (selective := model.mamba1) is not None:
        sizes |= {
            "mamba_channel": padded_width(model, selective.mamba_d_inner, tp),
            "mamba_selected": selective.mamba_dt_rank + 2 * selective.mamba_d_state,
            "mamba_rank": selective.mamba_dt_rank,
            "mamba_state": selective.mamba_d_state,
            "mamba_tap": selective.mamba_d_conv,
        }
    if model.conv is not None:
        sizes |= {"conv_channel": padded_width(model, model.hidden_size, tp), "conv_tap": model.conv.conv_L_cache}
    if model.lora is not None:
        sizes[RANK] = model.lora.r
    if model.graph is not None:
        sizes.update(model.graph.sizes)
    return sizes


def routed_tokens(model: ModelSpec, seq: int) -> float:
    """The even share of a sequence's tokens that each expert of a mixture gets; it need not be whole. Experts without a
    matrix get theirs too."""
    return seq * model.num_experts_per_tok / model.num_candidates


def _ngram_sizes(model: ModelSpec, ngrams: NgramEmbedding, tp: int) -> dict[str, int]:
    """Sizes of the dims that tables of n-grams have, and what is made of their rows. tp ranks share the parts of a
    table, with empty ones where there are fewer, or not as many for each."""
    tables = {table for layer in range(model.num_hidden_layers) if (table := model.ngram_table_of(layer)) is not None}
    rows = {f"ngram_row{table}": ngrams.part_rows(table, model.vocab_size) for table in sorted(tables)}
    return rows | {
        "ngram_part": padded_width(model, ngrams.split_ngram_parts, tp),
        "ngram_head": ngrams.heads,
        "ngram_dim": ngrams.row_width,
        "ngram_tap": ngrams.ple_conv_kernel_size,
    }


def _mamba_heads(model: ModelSpec, mamba: Mamba, tp: int) -> dict[str, int]:
    """Sizes of the dims of Mamba-2's heads. Heads that share one B and C are split over tp ranks, with padding; of
    groups each rank has whole ones."""
    if mamba.mamba_n_groups == 1:
        return {"mamba_head": padded_width(model, mamba.mamba_n_heads, tp)}
    return {"mamba_group": mamba.mamba_n_groups, "mamba_head": mamba.mamba_n_heads // mamba.mamba_n_groups}


def _latent_sizes(model: ModelSpec, latent: LatentAttention) -> dict[str, int]:
    """Sizes of the dims that latent attention has besides: compressed vectors, and the parts of heads."""
    unturned = model.head_dim - latent.qk_rope_head_dim
    sizes = {
        "kv_rank": latent.kv_lora_rank,
        "kv_b": unturned + latent.v_head_dim,
        "nopedim": unturned,
        "valuedim": latent.v_head_dim,
    }
    if turned := latent.qk_rope_head_dim:
        sizes |= {"kv_a": latent.kv_lora_rank + turned, "ropedim": turned}
    if model.family.has_whole_nope_keys:
        sizes["kv_whole"] = model.head_dim + latent.v_head_dim
    if model.family.scales_frequencies:
        sizes["ropepair"] = latent.qk_rope_head_dim // 2
    return sizes if latent.q_lora_rank is None else {**sizes, "q_rank": latent.q_lora_rank}


def _compressed_sizes(compressed: CompressedAttention, seq: int) -> dict[str, int]:
    """Sizes of the dims that compressed attention has besides: compressed vectors, entries, and heads of an indexer."""
    return {
        "q_rank": compressed.q_lora_rank,
        "o_rank": compressed.o_lora_rank,
        SERIES: 2,
        "sparse_rate": compressed.sparse_rate,
        "sparse_entry": max(1, seq // compressed.sparse_rate),
        "heavy_rate": compressed.heavy_rate,
        "heavy_entry": max(1, seq // compressed.heavy_rate),
        "index_head": compressed.index_n_heads,
        "index_dim": compressed.index_head_dim,
    }


def published_sizes(model: ModelSpec) -> dict[str, int]:
    """Size of every dim that a parameter has, without padding."""
    return dim_sizes(model, batch=1, seq=1)


def stage_graph(
    model: ModelSpec,
    sizes: dict[str, int],
    layers: Sequence[int],
    first: bool,
    last: bool,
    attention_kernel: str = "flash",
    element_bytes: int = 2,
) -> Graph:
    """The graph of the stage with these blocks, with the embedding if first, and the head and loss if last.

    sizes: as `dim_sizes` gives them. layers: places of blocks in the model. element_bytes: of a parameter or activation
    element.
    Raises AutoshardError for a family of a plug-in that does not build it, and for adapters that no block has a place
    for.
    """
    if FAMILIES.plugin(model.model_type) is not None:
        _check_plugin(model)
    b, graph = GraphBuilder(sizes, element_bytes), graph_of(model.family)
    x = graph.embedding(b, model) if first else b.hidden_input(HIDDEN, " ".join(residual_dims(model)))
    for layer in layers:
        x = graph.block(b, model, x, layer, attention_kernel)
    if last:
        loss = graph.head(b, model, x)
        if model.multi_token_prediction is not None:
            prediction(b, model, graph, loss, attention_kernel)
    if (lora := model.lora) is None:
        return b.build()
    check_adapters(model)
    return with_adapters(b.build(), lora.r, lora.scale, lora.target_modules, model.dropout.lora)


def linear_layers(model: ModelSpec) -> tuple[str, ...]:
    """Names of the linear layers of a model's blocks that may have adapters, sorted."""
    return tuple(sorted({name for _, names in _layers_of_kinds(model) for name in names}))


def _layers_of_kinds(model: ModelSpec) -> Iterator[tuple[int, set[str]]]:
    """(the first block of each kind, names of its linear layers that may have adapters)."""
    bare, sizes = model.without_adapters, published_sizes(model.without_adapters)
    for kind in bare.kinds:
        yield kind, {*adaptable(stage_graph(bare, sizes, (kind,), first=False, last=False)).values()}


@lru_cache(maxsize=64)
def check_adapters(model: ModelSpec) -> None:
    """Raises AutoshardError where some of a model's adapters have no layer to stand beside, or a kind of block has none
    of them."""
    assert model.lora is not None
    asked, known = {*model.lora.target_modules}, {*linear_layers(model)}
    if unknown := sorted(asked - known):
        raise AutoshardError(
            f"target_modules of lora of {model.name} has {unknown[0]}, no linear layer of its blocks beside "
            f"experts and routers; those that they have: {', '.join(sorted(known))}"
        )
    for kind, names in _layers_of_kinds(model):
        if asked.isdisjoint(names):
            raise AutoshardError(
                f"target_modules={'+'.join(model.lora.target_modules)} of lora of {model.name}: block {kind} has none "
                f"of them, and would learn nothing; it has {', '.join(sorted(names))}"
            )


@lru_cache(maxsize=64)
def _check_plugin(model: ModelSpec) -> None:
    check_family(model, published_sizes(model))


def parameter_count(model: ModelSpec) -> int:
    """Number of parameters that the whole model holds, as published: unpadded, tied ones once."""
    return sum(parameters_by_dims(model).values())


def learned_count(model: ModelSpec) -> int:
    """Number of parameters of the whole model that are learned, counted as `parameter_count` does."""
    return sum(parameters_by_dims(model, learned_only=True).values())


@lru_cache(maxsize=256)
def active_count(model: ModelSpec) -> int:
    """Number of parameters that a token meets, counted as `parameter_count` does: all but those of the experts that it
    is not sent to, and of the rows of tables of n-grams that it does not have. Of the experts that it is sent to, an
    even share has matrices."""
    if not model.is_moe:
        return parameter_count(model)
    by_dims = parameters_by_dims(model)
    of_experts = sum(count for dims, count in by_dims.items() if {"expert", "ffn"} <= {*dims})
    idle = model.num_candidates - model.num_experts_per_tok
    of_tables = sum(
        count - ngrams.ple_embed_dim
        for dims, count in by_dims.items()
        if (ngrams := model.ngram_embedding) is not None and "ngram_part" in dims
    )
    return sum(by_dims.values()) - of_experts * idle // model.num_candidates - of_tables


def orthogonal_count(model: ModelSpec) -> int:
    """Number of parameters of the whole model that Muon updates where it is the optimizer."""
    every = _each_parameter(model)
    return sum(times * graph.num_elements(one.name) for times, graph, one in every if one in orthogonal(graph))


def parameters_by_dims(model: ModelSpec, learned_only: bool = False) -> dict[tuple[str, ...], int]:
    """Numbers of parameters of the whole model by the dims that they have, counted as `parameter_count` does: those
    that blocks share once. learned_only: without those that have no gradient, such as the bias of a router's choice."""
    counts = dict[tuple[str, ...], int]()
    for times, graph, tensor in _each_parameter(model):
        if tensor.differentiable or not learned_only:
            counts[tensor.dims] = counts.get(tensor.dims, 0) + times * graph.num_elements(tensor.name)
    return counts


def _each_parameter(model: ModelSpec) -> Iterator[tuple[int, Graph, Tensor]]:
    """Yields how often the whole model has a parameter, a graph with it, and the parameter, of published sizes."""
    sizes = published_sizes(model)
    kinds = model.kind_counts(0, model.num_hidden_layers)
    parts = [(1, stage_graph(model, sizes, (), first=True, last=True))]
    parts += [(count, stage_graph(model, sizes, (kind,), first=False, last=False)) for kind, count in kinds]
    outside: set[str] = set()
    for count, graph in parts:
        for tensor in graph.parameters():
            if is_outside := name_in_block(tensor.name) == "":
                if tensor.name in outside:
                    continue
                outside.add(tensor.name)
            yield 1 if is_outside else count, graph, tensor
