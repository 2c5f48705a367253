"""The config.json of Nemotron."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"nemotron": "NemotronForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)


def read(config: Config, model_type: str) -> ModelSpec:
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        eps="norm_eps",
        hidden_act=config.value("hidden_act", "relu2"),
        **partial_rope(config, DEFAULTS.rope_theta, 0.5),
        attention_bias=config.value("attention_bias", False),
        mlp_bias=config.value("mlp_bias", False),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model)
    config["norm_eps"] = config.pop("rms_norm_eps")
    return config | {
        "partial_rotary_factor": model.partial_rotary_factor,
        "attention_bias": model.attention_bias,
        "mlp_bias": model.mlp_bias,
    }
