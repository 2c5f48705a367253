"""The config.json of MiMo-V2-Flash, as published and as transformers writes it."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_positive, show
from autoshard.models.config_fields import Config, rope_keys, ropes_of_kinds
from autoshard.models.deepseek.config import corrected_router, expert_keys, experts, kind_keys
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    ATTENTION_TYPES,
    DENSE,
    FULL_ATTENTION,
    MOST_REPEATED,
    SLIDING_ATTENTION,
    SPARSE,
)

ARCHITECTURES = {"mimo_v2_flash": "MiMoV2FlashForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=5_000_000.0, num_key_value_heads=4, head_dim=192)
LOCAL_THETA, ROTARY_PART = 10_000.0, 0.334
VALUE_DIM, VALUE_SCALE = 128, 0.707
PATTERN_KEY = "hybrid_layer_pattern"
WINDOW, PATTERN = 129, 6
"""Without the keys; the first block has no window, nor has every so many-th one."""
MORE_HEADS = 2
"""Key-value heads of a block with a window for each of one without, if a config does not say; transformers knows no
other number."""


def read(config: Config, model_type: str) -> ModelSpec:
    for part in ("num_attention_heads", "head_dim", "v_head_dim"):
        if config.gives(f"swa_{part}"):
            config.only(f"swa_{part}", config.value(part))
    config.only("add_swa_attention_sink_bias", True)
    config.only("add_full_attention_sink_bias", False)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = _kinds(config, layers)
    keys = config.integer("num_key_value_heads", DEFAULTS.num_key_value_heads, at_most=MOST_REPEATED)
    width = config.integer("head_dim", DEFAULTS.head_dim)
    theta, scaling, local = ropes_of_kinds(
        config, DEFAULTS.rope_theta, config.positive("swa_rope_theta", LOCAL_THETA), known=()
    )
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        eps="layernorm_epsilon" if config.gives("layernorm_epsilon") else "rms_norm_eps",
        num_key_value_heads=config.integer("swa_num_key_value_heads", MORE_HEADS * keys, at_most=MOST_REPEATED),
        attention_bias=config.value("attention_bias", False),
        sliding_window=_window(config),
        layer_types=types,
        global_attention=GlobalAttention(keys, width),
        v_head_dim=config.integer("v_head_dim", VALUE_DIM),
        attention_scores=AttentionScores(
            window_sinks=True, attention_value_scale=config.optional("attention_value_scale", VALUE_SCALE)
        ),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_local_base_freq=local,
        partial_rotary_factor=_turned_part(config),
        **corrected_router(config, n_group=1, topk_group=1, scaling=1.0),
        **_experts(config, layers),
    )


def _kinds(config: Config, layers: int) -> tuple[str, ...]:
    """The layer_types, which published configs write as hybrid_layer_pattern: 1 with a window, 0 without. transformers
    saves both of a published one. Raises AutoshardError where they differ."""
    usual = [int(layer > 0 and (layer + 1) % PATTERN != 0) for layer in range(layers)]
    pattern = tuple((FULL_ATTENTION, SLIDING_ATTENTION)[flag] for flag in _flags(config, PATTERN_KEY, usual))
    types = config.words("layer_types", layers, ATTENTION_TYPES) if config.gives("layer_types") else pattern
    if config.gives(PATTERN_KEY) and types != pattern:
        raise AutoshardError(f"{PATTERN_KEY} of {config.name} must say the same blocks as layer_types beside it")
    return types


def _flags(config: Config, key: str, usual: list[int]) -> list[int]:
    """A list of 0 and 1, one for each block. usual: without the key."""
    found = config.value(key, usual)
    if not isinstance(found, list) or len(found) != len(usual) or any(flag not in (0, 1) for flag in found):
        raise AutoshardError(
            f"{key}={show(found)} of {config.name} must be a list of {len(usual)} numbers, 0 or 1, one a block"
        )
    return [int(flag) for flag in found]


def _window(config: Config) -> int:
    """Keys that a query sees, itself included; published configs say in sliding_window_size how many others."""
    if config.gives("sliding_window_size"):
        for same in ("sliding_window", "attention_chunk_size"):  # which transformers does not read then
            config.gives(same)
        return config.integer("sliding_window_size") + 1
    return config.integer("sliding_window", WINDOW)


def _turned_part(config: Config) -> float:
    """The part of each head that positions turn, with a window and without."""
    ropes = config.value("rope_parameters", {})
    usual = config.positive("partial_rotary_factor", ROTARY_PART)
    full, local = (ropes.get(kind, {}).get("partial_rotary_factor", usual) for kind in ATTENTION_TYPES)
    if full != local:
        raise AutoshardError(
            f"partial_rotary_factor of {config.name} must be the same in both objects of rope_parameters; it is "
            f"{show(full)} and {show(local)}"
        )
    check_positive(config.name, "partial_rotary_factor", full)
    return float(full)


def _experts(config: Config, layers: int) -> dict[str, Any]:
    """The fields of the experts, which published configs write as a list in moe_layer_freq: 1 with experts, 0
    without."""
    kinds: tuple[str, ...] = ()
    if isinstance(config.value("moe_layer_freq", 1), list):
        kinds = tuple((DENSE, SPARSE)[flag] for flag in _flags(config, "moe_layer_freq", [1] * layers))
    return experts(config, first_dense=1, shared=0, says_kinds=True, kinds=kinds)


def write(model: ModelSpec) -> dict[str, Any]:
    wide, scores, window = model.global_attention, model.attention_scores, model.sliding_window
    assert wide is not None and window is not None, model.name
    written = written_as_llama(model) | expert_keys(model) | kind_keys(model)
    for key in (*rope_keys(model), "first_k_dense_replace", "n_shared_experts"):
        del written[key]
    turned = {"rope_type": "default", "partial_rotary_factor": model.partial_rotary_factor}
    return written | {
        "num_key_value_heads": wide.num_global_key_value_heads,
        "swa_num_key_value_heads": model.num_key_value_heads,
        "v_head_dim": model.v_head_dim,
        "attention_value_scale": scores.attention_value_scale,
        "attention_bias": model.attention_bias,
        "sliding_window": window,
        "layer_types": list(model.layer_types),
        "rope_parameters": {
            FULL_ATTENTION: {**turned, "rope_theta": model.rope_theta},
            SLIDING_ATTENTION: {**turned, "rope_theta": model.rope_local_base_freq},
        },
    }
