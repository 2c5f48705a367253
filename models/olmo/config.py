"""The config.json of OLMo."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"olmo": "OlmoForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
"""No config says what its norms add to a variance."""


def read(config: Config, model_type: str) -> ModelSpec:
    config.only("rms_norm_eps", DEFAULTS.norm_eps)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        attention_bias=config.value("attention_bias", False),
        attention_scores=AttentionScores(clip_qkv=config.optional("clip_qkv", None)),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    written = written_as_llama(model)
    del written["rms_norm_eps"]
    return written | {"attention_bias": model.attention_bias, "clip_qkv": model.attention_scores.clip_qkv}
