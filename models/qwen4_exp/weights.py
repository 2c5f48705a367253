"""The names and the form of our parameters in Hugging Face checkpoints of Qwen4-Exp's text model, as published.

A table of n-grams lies in several tensors of as many rows. An indexer's matrix has all queries' rows before the key's.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.stream_kinds import STREAM
from autoshard.models.llama.graph import TABLE
from autoshard.models.qwen.weights import mlp, with_fused_experts
from autoshard.models.qwen3_next.weights import LEFT_OUT as OTHER_PARTS
from autoshard.models.qwen3_next.weights import gated_attention, linear_attention
from autoshard.models.qwen4_exp.graph import MIXER, rows_dim
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

LEFT_OUT = OTHER_PARTS
STREAMS = f"({STREAM} embed)"
CONSTANTS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
"""Tensors of a table that follow from the config."""


def left_out(model: ModelSpec) -> tuple[str, ...]:
    """The starts of names of tensors that are computed from the config: factors and rows of tables of n-grams."""
    layers = (layer for layer in range(model.num_hidden_layers) if model.ngram_table_of(layer) is not None)
    return tuple(f"model.layers.{layer}.ple.ple_embedding.{name}" for layer in layers for name in CONSTANTS)


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same(TABLE, "vocab embed")
    yield from _streams(MIXER)
    if not model.tie_word_embeddings:
        yield Part.same("lm_head.weight", "vocab embed")


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if (table := model.ngram_table_of(layer)) is not None:
        yield from _ngrams(model, f"{prefix}.ple", table)
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        yield from linear_attention(model, f"{prefix}.linear_attn")
    else:
        yield from gated_attention(f"{prefix}.self_attn")
        yield from _indexer(model, f"{prefix}.self_attn.indexer")
    for name in ("attn_hyper_connection", "mlp_hyper_connection"):
        yield from _streams(f"{prefix}.{name}")
        yield Part.same(f"{prefix}.{name}.block_inject_weight.weight", f"pre {STREAMS}")
    yield from mlp(model, layer)


def fused_block(model: ModelSpec, layer: int) -> Iterator[Part]:
    """The parts of `block`, but with all experts in one tensor: how Qwen publishes its mixtures."""
    yield from with_fused_experts(model, layer, block(model, layer))


def _streams(name: str) -> Iterator[Part]:
    """The parts of the checkpoint for what reads streams. name: of the module."""
    yield Part.same(f"{name}.hc_norm.weight", STREAMS)
    yield Part.same(f"{name}.input_mix_weight_down.weight", f"mix_rank {STREAMS}")
    yield Part.same(f"{name}.input_mix_weight_up.weight", f"{STREAMS} mix_rank")


def _indexer(model: ModelSpec, name: str) -> Iterator[Part]:
    if (indexer := model.indexer) is None:
        return
    width, heads = indexer.index_head_dim, indexer.index_n_heads
    for part, rows, first in (("q_proj", "index_head index_dim", 0), ("k_proj", "index_dim", heads * width)):
        own = f"{name}.{part}.weight"
        yield Part(f"{name}.index_qk_proj.weight", f"([{rows}]) embed", own, first=first, rows=(heads + 1) * width)
    for part in ("q_layernorm", "k_layernorm"):
        yield Part.same(f"{name}.{part}.weight", "index_dim")


def _ngrams(model: ModelSpec, name: str, table: int) -> Iterator[Part]:
    """The parts of the checkpoint for the n-grams of a block. name: of the module. table: the number of its table."""
    ngrams = model.ngram_embedding
    assert ngrams is not None, model.name
    own = f"{name}.ple_embedding.ngram_embedding"
    for part in range(ngrams.split_ngram_parts):
        yield Part(
            f"{own}.shard_{part}.weight", f"{rows_dim(table)} ngram_dim", f"{own}.weight", at=(("ngram_part", part),)
        )
    yield Part.same(f"{name}.key_proj.weight", f"{STREAMS} (ngram_head ngram_dim)")
    yield Part.same(f"{name}.value_proj.weight", "embed (ngram_head ngram_dim)")
    for norm in ("norm_key", "norm_query", "norm_conv"):
        yield Part.same(f"{name}.{norm}.weight", STREAMS)
    yield Part.same(f"{name}.conv1d.weight", f"{STREAMS} 1 ngram_tap")
