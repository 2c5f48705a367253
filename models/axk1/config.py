"""The config.json of A.X-K1."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import UNSUPPORTED, Defaults, read_with_experts, written_with_experts
from autoshard.spec.model import ModelSpec

__all__ = ["ARCHITECTURES", "UNSUPPORTED", "read", "write"]

ARCHITECTURES = {"axk1": "AXK1ForCausalLM"}
DEFAULTS = Defaults(first_dense=1)


def read(config: Config, model_type: str) -> ModelSpec:
    if config.is_null("q_lora_rank"):
        raise AutoshardError(
            f"q_lora_rank=null of {config.name} is not supported: queries of {model_type} are compressed; a number is"
        )
    return read_with_experts(config, model_type, DEFAULTS)


def write(model: ModelSpec) -> dict[str, Any]:
    return written_with_experts(model)
