"""The config.json of GLM-5.3's text model, with the keys of published ones and of those that transformers saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_flag, check_negative
from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import Defaults, indexer_types, read_with_experts, written_with_experts
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.indexer import Indexer
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    BOTH,
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MOST_REPEATED,
    NOPE,
    OWN_INDEXER,
    SHARED_INDEXER,
)

ARCHITECTURES = {"glm5_next_text": "Glm5NextForCausalLM"}
DEFAULTS = Defaults(1536, 512, 256, 256, 1e-5, n_group=1, topk_group=1, scaling=2.5, first_dense=3, qk_rope_head_dim=0)
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True))
ONLY: Mapping[str, object] = {
    "qk_rope_head_dim": 0,
    "index_kpool_always_select_tail": True,
    "index_kpool_compress": True,
    "mhc": True,
    "mla_use_nope": True,
}
"""Keys of which one value alone is supported; the last three are those of published configs."""
SPARSE_ATTENTION = "deepseek_sparse_attention"
MIXERS = {
    LINEAR_ATTENTION: LINEAR_ATTENTION,
    **dict.fromkeys((SPARSE_ATTENTION, "indexed_attention", FULL_ATTENTION), FULL_ATTENTION),
}
"""Word of the config's layer_types, the published one of sparse attention first -> ours."""
INTERVAL = 4
"""Without layer_types the last block of so many has attention."""
BLOCKS = ("kda_layers", "full_attn_layers")
LINEAR, BOUND = "linear_attn_config", ("gate_lower_bound", "linear_lower_bound")
SIZES = {
    "num_heads": ("linear_num_heads", 64),
    "head_dim": ("linear_head_dim", 128),
    "short_conv_kernel_size": ("linear_conv_kernel_dim", 4),
}
"""Key of linear_attn_config -> (transformers' key, the value that it takes without both); BOUND alike."""
LOWER_BOUND = -5.0
THETA = 10_000.0
"""Says nothing, as nothing turns."""
CHOICE = Indexer(32, 128, 2048, index_kpool=16)
"""Without its keys."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Modules for multi-token prediction are left out, as in transformers."""
    for key, known in ONLY.items():
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if not config.gives("mlp_layer_types"):  # transformers reads no other key
        config.only("first_k_dense_replace", DEFAULTS.first_dense)
    types = _mixers(config, layers)
    limit = config.positive("swiglu_limit", 10.0)
    return read_with_experts(
        config,
        model_type,
        DEFAULTS,
        layer_types=types if LINEAR_ATTENTION in types else (),
        linear_attention=_linear_attention(config) if LINEAR_ATTENTION in types else None,
        position_types=(NOPE,) * layers,
        rope_theta=THETA,
        rope_scaling=None,
        gate_types=(BOTH,) * layers,
        indexer_types=_indexer_types(config, types),
        clamped_gate=ClampedGate(limit, swiglu_limit_shared=limit, cuts_before_silu=True),
        hyper_connections=HyperConnections(
            config.integer("hc_mult", 4), config.integer("hc_sinkhorn_iters", 20), config.positive("hc_eps", 1e-6)
        ),
        indexer=Indexer(
            index_n_heads=config.integer("index_n_heads", CHOICE.index_n_heads),
            index_head_dim=config.integer("index_head_dim", CHOICE.index_head_dim),
            index_topk=config.integer("index_topk", CHOICE.index_topk),
            index_kpool=config.integer("index_kpool", CHOICE.index_kpool),
        ),
    )


def _mixers(config: Config, layers: int) -> tuple[str, ...]:
    """Our layer_types of a config. The lists of blocks in linear_attn_config, which published ones have beside them,
    say nothing to transformers, and are refused alone."""
    if config.gives("layer_types"):
        return tuple(MIXERS[word] for word in config.words("layer_types", layers, tuple(MIXERS)))
    linear = config.inner(LINEAR)
    if listed := [key for key in BLOCKS if linear.gives(key)]:
        raise AutoshardError(
            f"{' and '.join(listed)} of {config.name} are not supported without layer_types beside them"
        )
    return tuple(FULL_ATTENTION if layer % INTERVAL == INTERVAL - 1 else LINEAR_ATTENTION for layer in range(layers))


def _indexer_types(config: Config, mixers: tuple[str, ...]) -> tuple[str, ...]:
    """Our indexer_types of a config; what it says of blocks without attention says nothing. A block may see the keys
    that the block right before it chose: transformers hands them on no farther."""
    said = indexer_types(config) or (OWN_INDEXER,) * len(mixers)
    own = [mixer == FULL_ATTENTION and word == OWN_INDEXER for mixer, word in zip(mixers, said, strict=True)]
    shared = [mixer == FULL_ATTENTION and word == SHARED_INDEXER for mixer, word in zip(mixers, said, strict=True)]
    for layer in (place for place, sees in enumerate(shared) if sees):
        if layer == 0 or not own[layer - 1]:
            raise AutoshardError(
                f"indexer_types={SHARED_INDEXER} of block {layer} of {config.name} is not supported: no indexer of the "
                "block right before it chooses keys"
            )
    return tuple(SHARED_INDEXER if sees else OWN_INDEXER for sees in shared) if any(shared) else ()


def _linear_attention(config: Config) -> LinearAttention:
    linear = config.inner(LINEAR)
    heads, head, taps = (linear.integer(key, config.integer(other, default)) for key, (other, default) in SIZES.items())
    return LinearAttention(heads, heads, head, head, taps, kda_lower_bound=_lower_bound(config, linear))


def _lower_bound(config: Config, linear: Config) -> float | None:
    """How fast a channel fades at most; None without a bound. linear: linear_attn_config, which goes before keys of the
    config, and in which null means a bound too, unless safe_gate is False."""
    inner, outer = BOUND
    source, key = (linear, inner) if linear.gives(inner) or linear.is_null(inner) else (config, outer)
    if source.is_null(key):
        is_safe = linear.value("safe_gate", True)
        check_flag(config.name, "safe_gate", is_safe)
        return LOWER_BOUND if is_safe and config.gives(LINEAR) else None
    bound = source.value(key, LOWER_BOUND)
    check_negative(config.name, key, bound)
    return float(bound)


def write(model: ModelSpec) -> dict[str, Any]:
    indexer, hyper, gate = model.indexer, model.hyper_connections, model.clamped_gate
    assert indexer is not None and hyper is not None and gate is not None, model
    config = written_with_experts(model)
    for key in ("rope_theta", "rope_scaling", "rope_interleave", "first_k_dense_replace"):
        del config[key]
    words = {ours: word for word, ours in reversed(MIXERS.items())}
    mixers = model.layer_types or (FULL_ATTENTION,) * model.num_hidden_layers
    config |= {
        "layer_types": [words[word] for word in mixers],
        "indexer_types": list(model.indexer_types) or [OWN_INDEXER] * model.num_hidden_layers,
        "index_n_heads": indexer.index_n_heads,
        "index_head_dim": indexer.index_head_dim,
        "index_topk": indexer.index_topk,
        "index_kpool": indexer.index_kpool,
        "swiglu_limit": gate.swiglu_limit,
        "hc_mult": hyper.hc_mult,
        "hc_sinkhorn_iters": hyper.hc_sinkhorn_iters,
        "hc_eps": hyper.hc_eps,
    }
    if (linear := model.linear_attention) is not None:
        sizes = linear.linear_num_key_heads, linear.linear_key_head_dim, linear.linear_conv_kernel_dim
        config |= {key: size for (key, _), size in zip(SIZES.values(), sizes, strict=True)}
        config[BOUND[1]] = linear.kda_lower_bound
    return config
