"""The config.json of Nemotron and of Arcee."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"nemotron": "NemotronForCausalLM", "arcee": "ArceeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)


def read(config: Config, model_type: str) -> ModelSpec:
    more: dict[str, Any] = {}
    if model_type == "nemotron":
        more = {"eps": "norm_eps", **partial_rope(config, DEFAULTS.rope_theta, 0.5)}
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        hidden_act=config.value("hidden_act", "relu2"),
        **more,
        attention_bias=config.value("attention_bias", False),
        mlp_bias=config.value("mlp_bias", False),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config, more = written_as_llama(model), dict[str, Any]()
    if model.model_type == "nemotron":
        more = {"norm_eps": config.pop("rms_norm_eps"), "partial_rotary_factor": model.partial_rotary_factor}
    return {**config, **more, "attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
