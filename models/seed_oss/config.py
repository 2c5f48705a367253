"""The config.json of Seed-OSS."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"seed_oss": "SeedOssForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=8, head_dim=128)
DROPOUT = {"residual": ("residual_dropout", 0.1), "attention": ("attention_dropout", 0.1)}
UNSUPPORTED: tuple[tuple[str, object], ...] = (("attention_out_bias", True),)


def read(config: Config, model_type: str) -> ModelSpec:
    biases = {"attention_bias": config.value("attention_bias", True), "mlp_bias": config.value("mlp_bias", False)}
    return read_as_llama(config, model_type, DEFAULTS, **biases)


def write(model: ModelSpec) -> dict[str, Any]:
    biases = {"attention_bias": model.attention_bias, "attention_out_bias": False, "mlp_bias": model.mlp_bias}
    return written_as_llama(model) | biases
