"""The config.json of Hy4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import Defaults, read_with_experts, written_with_experts
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.indexer import Indexer
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import INDEXER_TYPES, MOST_REPEATED, OWN_INDEXER, SHARED_INDEXER

ARCHITECTURES = {"hy_v4": "HYV4ForCausalLM"}
UNSUPPORTED = (("attention_bias", True), ("mlp_bias", True))
DEFAULTS = Defaults(1536, 512, 192, 256, 1e-5, n_group=1, topk_group=1, scaling=2.827, first_dense=1, interleave=False)
ALONE: Mapping[str, object] = {
    "use_mla": True,
    "use_dsa": True,
    "gated_mla": True,
    "gating_type": "elementwise",
    "learnable_sink": True,
    "enable_ihc": True,
}
"""Keys of published configs, which transformers does not read -> the only value that its model stands for."""
ATTENTION = ("indexed_attention", "deepseek_sparse_attention")
"""Words of layer_types, transformers' and those of published configs, for the attention that all blocks have."""
EVERY = 4
"""Of the blocks behind the first, every fourth has an indexer of its own where a config does not say."""
INDEXER = {"index_n_heads": 16, "index_head_dim": 128, "index_topk": 2048}


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Each head has keys, whatever num_key_value_heads says: transformers does not read it."""
    for key, known in ALONE.items():
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        config.words("layer_types", layers, ATTENTION)
    return read_with_experts(
        config,
        model_type,
        DEFAULTS,
        num_key_value_heads=config.value("num_attention_heads"),
        indexer=Indexer(
            **{key: config.integer(key, default) for key, default in INDEXER.items()},
            indexer_rope_interleave=config.switch("rope_interleave", DEFAULTS.interleave),
            turns_end=True,
            key_norm_eps=config.positive("rms_norm_eps", DEFAULTS.norm_eps),
        ),
        indexer_types=_indexer_types(config, layers),
        hyper_connections=HyperConnections(
            config.integer("hc_mult", 4),
            None,
            config.positive("hc_eps", 1e-6),
            hc_magnitude=config.positive("hc_magnitude", 2.0),
        ),
        attention_scores=AttentionScores(sinks=True),
        clamped_gate=ClampedGate(config.positive("swiglu_limit", 10.0), cuts_before_silu=True),
    )


def _indexer_types(config: Config, layers: int) -> tuple[str, ...]:
    """The indexer_types of a config: its own, or transformers' for Hy4; () where all blocks have an indexer."""
    types = tuple(SHARED_INDEXER if layer and (layer - 1) % EVERY else OWN_INDEXER for layer in range(layers))
    if config.gives("indexer_types"):
        types = config.words("indexer_types", layers, INDEXER_TYPES)
    return types if SHARED_INDEXER in types else ()


def write(model: ModelSpec) -> dict[str, Any]:
    indexer, hyper, gate = model.indexer, model.hyper_connections, model.clamped_gate
    assert indexer is not None and hyper is not None and gate is not None, model
    return written_with_experts(model) | {
        **{key: getattr(indexer, key) for key in INDEXER},
        "indexer_types": list(model.indexer_types) or [OWN_INDEXER] * model.num_hidden_layers,
        **{key: getattr(hyper, key) for key in ("hc_mult", "hc_magnitude", "hc_eps")},
        "swiglu_limit": gate.swiglu_limit,
    }
