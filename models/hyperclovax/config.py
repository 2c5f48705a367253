"""The config.json of HyperCLOVA X SEED Think."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.models.config_fields import Config, head_dim
from autoshard.models.llama.config import Defaults, multipliers, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"hyperclovax": "HyperCLOVAXForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0)


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Its logits_scaling multiplies logits, where Granite's divides them."""
    config.only("use_post_norm", True)
    usual = head_dim(config) ** -0.5
    scaling = 1 / config.positive("logits_scaling", 1.0)
    scaled = replace(
        multipliers(config),
        attention_multiplier=config.positive("attention_multiplier", usual),
        logits_scaling=scaling,
    )
    biases = {name: config.value(name, False) for name in ("attention_bias", "mlp_bias")}
    return read_as_llama(config, model_type, DEFAULTS, multipliers=scaled, **biases)


def write(model: ModelSpec) -> dict[str, Any]:
    assert model.multipliers is not None, model.name
    biases = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
    scaling = {**vars(model.multipliers), "logits_scaling": 1 / model.multipliers.logits_scaling}
    return written_as_llama(model) | biases | scaling | {"use_post_norm": True}
