"""The config.json of Qwen4-Exp's text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.models.qwen3_next.config import INTERVAL, SIZES
from autoshard.spec.gated_residual import GatedResidual
from autoshard.spec.indexer import Indexer
from autoshard.spec.linear_attention import SILU, LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LINEAR_ATTENTION, MOST_REPEATED, NONE, ngram_word
from autoshard.spec.ngram_embedding import NgramEmbedding

ARCHITECTURES = {"qwen4_exp_text": "Qwen4ExpForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=2, head_dim=256)
UNSUPPORTED: tuple[tuple[str, object], ...] = (("attention_bias", True),)
ALONE: Mapping[str, object] = {"attn_output_gate": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
"""Keys that transformers does not read -> the only value that its model stands for."""
INDEXED = "indexed_attention"
"""Word of transformers' layer_types for full attention; published configs have that of other families."""
INDEXER = {
    "index_n_heads": "indexer_n_heads",
    "index_head_dim": "indexer_head_dim",
    "index_topk": "indexer_budget",
    "index_kpool": "indexer_compress_ratio",
}
"""Size of an indexer -> the key of a config. It has all of them, or none."""
KEY_HEADS = "indexer_kv_heads"
TABLES = {
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ple_conv_kernel_size": 4,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 512,
}
SEED = 1234
EXPERTS, CHOSEN, EXPERT_WIDTH = 512, 10, 512
"""Of a config that does not say, as in transformers; the width of routed experts and of the shared one."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Every full_attention_interval-th block has attention, the others linear attention, unless
    layer_types says otherwise."""
    for key, known in ALONE.items():
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        words = config.words("layer_types", layers, (FULL_ATTENTION, INDEXED, LINEAR_ATTENTION))
        types = tuple(FULL_ATTENTION if word == INDEXED else word for word in words)
    else:
        interval = config.integer("full_attention_interval", INTERVAL)
        types = tuple(LINEAR_ATTENTION if (layer + 1) % interval else FULL_ATTENTION for layer in range(layers))
    more: dict[str, Any] = {}
    if LINEAR_ATTENTION in types:
        more = {"layer_types": types, "linear_attention": _linear(config)}
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        num_local_experts=config.integer("num_experts", EXPERTS),
        num_experts_per_tok=config.integer("num_experts_per_tok", CHOSEN),
        norm_topk_prob=config.switch("norm_topk_prob", True),
        shared_expert_intermediate_size=config.integer("shared_expert_intermediate_size", EXPERT_WIDTH),
        gated_residual=GatedResidual(config.integer("hc_count", 4), config.integer("hc_lowrank", 320)),
        indexer=_indexer(config) if FULL_ATTENTION in types else None,
        **routers_loss(config),
        **partial_rope(config, DEFAULTS.rope_theta, 0.25),
        **more,
        **_ngrams(config, types),
    )


def _linear(config: Config) -> LinearAttention:
    sizes: dict[str, Any] = {name: config.integer(name, default) for name, default in SIZES.items()}
    return LinearAttention(**sizes, output_gate_type=config.value("output_gate_type", config.value("hidden_act", SILU)))


def _indexer(config: Config) -> Indexer | None:
    """The indexer of blocks with full attention; None where a config has none, and queries see all keys before them."""
    keys = (*INDEXER.values(), KEY_HEADS)
    if not any(map(config.gives, keys)):
        return None
    if missing := [key for key in keys if not config.gives(key)]:
        raise AutoshardError(f"{missing[0]} is missing from the config of {config.name}, which has another indexer key")
    config.only(KEY_HEADS, 1)
    sizes: dict[str, Any] = {size: config.integer(key) for size, key in INDEXER.items()}
    if sizes["index_topk"] % sizes["index_kpool"]:
        budget, ratio = (INDEXER[size] for size in ("index_topk", "index_kpool"))
        raise AutoshardError(
            f"{ratio}={sizes['index_kpool']} of {config.name} must divide {budget}={sizes['index_topk']}, the keys of "
            "all pools that a query chooses"
        )
    return Indexer(**sizes, key_norm_eps=config.positive("rms_norm_eps", DEFAULTS.norm_eps))


def _ngrams(config: Config, types: tuple[str, ...]) -> dict[str, Any]:
    """The tables of n-grams, and which block has which: those of ple_layer_ids, which count from 1, in their order."""
    places = sorted(config.places("ple_layer_ids", len(types), first=1)) if config.gives("ple_layer_ids") else []
    if not places:
        return {}
    for place in places:
        if types[place] != LINEAR_ATTENTION:
            raise AutoshardError(
                f"ple_layer_ids of {config.name} has {place + 1}, a block with {types[place]}; transformers has "
                f"n-grams in blocks with {LINEAR_ATTENTION} alone"
            )
    ends = config.value("eos_token_id")
    if isinstance(ends, list):
        if not ends:
            raise AutoshardError(f"eos_token_id=[] of {config.name} must have a token: it ends n-grams")
        ends = ends[0]
    tables: dict[str, Any] = {name: config.integer(name, default) for name, default in TABLES.items()}
    width = config.integer("ple_embed_dim", config.integer("hidden_size"))
    seed = config.integer("seed", SEED, at_least=0)
    return {
        "ngram_embedding": NgramEmbedding(**tables, ple_embed_dim=width, seed=seed, eos_token_id=ends),
        "ngram_types": tuple(
            ngram_word(places.index(place)) if place in places else NONE for place in range(len(types))
        ),
    }


def write(model: ModelSpec) -> dict[str, Any]:
    gated, indexer, linear, ngrams = (
        model.gated_residual,
        model.indexer,
        model.linear_attention,
        model.ngram_embedding,
    )
    assert gated is not None, model.name
    config = written_as_llama(model) | routers_loss_keys(model)
    config["moe_intermediate_size"] = config.pop("intermediate_size")
    config |= {
        "attention_bias": False,
        "partial_rotary_factor": model.partial_rotary_factor,
        "layer_types": [
            INDEXED if word == FULL_ATTENTION else word
            for word in model.layer_types or (FULL_ATTENTION,) * model.num_hidden_layers
        ],
        "num_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "norm_topk_prob": model.norm_topk_prob,
        "shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        "hc_count": gated.hc_count,
        "hc_lowrank": gated.hc_lowrank,
    }
    if linear is not None:
        config |= {name: getattr(linear, name) for name in (*SIZES, "output_gate_type")}
    if indexer is not None:
        config |= {key: getattr(indexer, size) for size, key in INDEXER.items()} | {KEY_HEADS: 1}
    if ngrams is not None:
        config |= {name: getattr(ngrams, name) for name in (*TABLES, "ple_embed_dim", "seed", "eos_token_id")}
        config["ple_layer_ids"] = [place + 1 for place, word in enumerate(model.ngram_types) if word != NONE]
    return config
