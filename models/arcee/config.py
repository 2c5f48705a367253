"""The config.json of Arcee."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"arcee": "ArceeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)


def read(config: Config, model_type: str) -> ModelSpec:
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        hidden_act=config.value("hidden_act", "relu2"),
        attention_bias=config.value("attention_bias", False),
        mlp_bias=config.value("mlp_bias", False),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_as_llama(model) | {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
