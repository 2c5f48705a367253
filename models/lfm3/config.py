"""The config.json of LFM3."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, rope_parameters_of_kinds, ropes_of_kinds
from autoshard.models.llama.config import Defaults, read_as_llama, window_of_some, written_as_llama
from autoshard.spec.linear_attention import ShortConv
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CONV, FULL_ATTENTION, MOST_REPEATED, SLIDING_ATTENTION
from autoshard.spec.rope import PROPORTIONAL

ARCHITECTURES = {"lfm3": "Lfm3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=4, head_dim=128)
LOCAL_THETA = 10_000.0
ROPE = {"rope_type": PROPORTIONAL, "partial_rotary_factor": 0.5}
"""Positions of blocks with full attention without the key."""
WINDOW, TAPS = 256, 7
"""Without the keys."""
ONLY = {"use_sandwich_norm": True, "use_attention_gate": True, "attention_bias": False}
"""Keys of which one value alone was published."""


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ONLY.items():
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = tuple(_usual(layer) for layer in range(layers))
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, (FULL_ATTENTION, SLIDING_ATTENTION, CONV))
    sizes = {"conv_L_cache": config.integer("conv_L_cache", TAPS), "conv_bias": config.value("conv_bias", False)}
    theta, scaling, local = ropes_of_kinds(config, DEFAULTS.rope_theta, LOCAL_THETA, ROPE, (PROPORTIONAL,))
    window = window_of_some(config, WINDOW, types)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        eps="norm_eps",
        hidden_act="silu",
        tie_word_embeddings=config.value("tie_word_embeddings", True),
        layer_types=types,
        sliding_window=window,
        conv=ShortConv(**sizes) if CONV in types else None,
        rope_theta=theta,
        rope_scaling=scaling,
        rope_local_base_freq=None if window is None else local,
    )


def _usual(layer: int) -> str:
    """The word of layer_types for the block at this place, of a config without that key."""
    if layer % 4 == 2:
        return FULL_ATTENTION
    return SLIDING_ATTENTION if layer and layer % 4 == 0 else CONV


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model, "norm_eps")
    del config["rope_theta"], config["rope_scaling"]
    return (
        config
        | rope_parameters_of_kinds(model)
        | {"layer_types": list(model.layer_types), "sliding_window": model.sliding_window or WINDOW}
        | (vars(model.conv) if model.conv else {})
    )
