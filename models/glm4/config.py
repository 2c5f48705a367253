"""The config.json of GLM-4."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"glm4": "Glm4ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1.5625e-7, rope_theta=10_000.0, num_key_value_heads=2, head_dim=128)


def read(config: Config, model_type: str) -> ModelSpec:
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **partial_rope(config, DEFAULTS.rope_theta, 0.5),
        attention_bias=config.value("attention_bias", True),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    more = {"partial_rotary_factor": model.partial_rotary_factor, "attention_bias": model.attention_bias}
    return written_as_llama(model) | more
