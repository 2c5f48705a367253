"""The config.json of Apertus."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, rope_base, rope_parameters, stretched
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import XIELU

ARCHITECTURES = {"apertus": "ApertusForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=12_000_000.0)
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Positions where a config does not say."""
UNSUPPORTED = (("mlp_bias", True), ("qk_norm", False), ("post_norm", True))
"""Published configs have these keys, and transformers has the other form alone."""


def read(config: Config, model_type: str) -> ModelSpec:
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        hidden_act=config.value("hidden_act", XIELU),
        attention_bias=config.value("attention_bias", False),
        rope_theta=rope_base(config, DEFAULTS.rope_theta),
        rope_scaling=stretched(config, config.rope(ROPE)),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_as_llama(model) | rope_parameters(model) | {"attention_bias": model.attention_bias}
