"""The config.json of Youtu-LLM."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import UNSUPPORTED, Defaults, read_with_latent, written_with_latent
from autoshard.spec.model import ModelSpec

__all__ = ["ARCHITECTURES", "UNSUPPORTED", "read", "write"]

ARCHITECTURES = {"youtu": "YoutuForCausalLM"}


def read(config: Config, model_type: str) -> ModelSpec:
    return read_with_latent(
        config, model_type, Defaults(tied=True), intermediate_size=config.value("intermediate_size")
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_with_latent(model)
