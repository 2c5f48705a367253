"""The config.json of OLMo Hybrid."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, rope_keys
from autoshard.models.llama.config import Defaults, every_few, read_as_llama, written_as_llama
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LINEAR_ATTENTION, MOST_REPEATED, NOPE, SLIDING_ATTENTION

ARCHITECTURES = {"olmo_hybrid": "OlmoHybridForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0)
PATTERN, TAPS = 4, 4
"""Without the keys: every so many-th block has attention, and convolutions see so many tokens."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. A rope_theta that is null says that there are no positions, as published."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    more: dict[str, Any] = {"attention_bias": config.value("attention_bias", False), "layer_types": _mixers(config)}
    if LINEAR_ATTENTION in more["layer_types"]:
        more["linear_attention"] = _linear_attention(config)
    rope = config.rope()
    if config.is_null("rope_theta") or ("rope_theta" in rope and rope["rope_theta"] is None):
        more |= {"rope_theta": DEFAULTS.rope_theta, "rope_scaling": None, "position_types": (NOPE,) * layers}
    return read_as_llama(config, model_type, DEFAULTS, **more)


def _mixers(config: Config) -> tuple[str, ...]:
    """The layer_types; without the key every PATTERN-th block has attention, of fewer blocks the last one."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        return config.words("layer_types", layers, (FULL_ATTENTION, LINEAR_ATTENTION))
    windows = every_few(layers, min(PATTERN, layers))
    return tuple(LINEAR_ATTENTION if word == SLIDING_ATTENTION else word for word in windows)


def _linear_attention(config: Config) -> LinearAttention:
    """Its sizes; without the keys as many heads as attention has, keys of three quarters of the model's width
    together, and values twice as wide."""
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    keys = config.integer("linear_num_key_heads", heads, at_most=MOST_REPEATED)
    width = config.integer("linear_key_head_dim", max(1, 3 * config.integer("hidden_size") // (4 * keys)))
    return LinearAttention(
        linear_num_key_heads=keys,
        linear_num_value_heads=config.integer("linear_num_value_heads", heads, at_most=MOST_REPEATED),
        linear_key_head_dim=width,
        linear_value_head_dim=config.integer("linear_value_head_dim", 2 * width),
        linear_conv_kernel_dim=config.integer("linear_conv_kernel_dim", TAPS),
        linear_allow_neg_eigval=config.value("linear_allow_neg_eigval", True),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config, ropes = written_as_llama(model), rope_keys(model)
    for key in ropes:
        del config[key]
    del config["head_dim"]  # transformers shares the width out over the heads
    theta = None if model.position_types else model.rope_theta
    config["rope_parameters"] = {"rope_type": "default", **(ropes["rope_scaling"] or {}), "rope_theta": theta}
    config |= {
        "attention_bias": model.attention_bias,
        "layer_types": list(model.layer_types) or [FULL_ATTENTION] * model.num_hidden_layers,
    }
    return config if model.linear_attention is None else config | vars(model.linear_attention)
