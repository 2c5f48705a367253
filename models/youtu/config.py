"""The config.json of Youtu-LLM and MiniCPM3."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config, divided
from autoshard.models.deepseek.config import UNSUPPORTED, Defaults, read_with_latent, written_with_latent
from autoshard.spec.model import ModelSpec
from autoshard.spec.multipliers import Multipliers

__all__ = ["ARCHITECTURES", "UNSUPPORTED", "read", "write"]

ARCHITECTURES = {"youtu": "YoutuForCausalLM", "minicpm3": "MiniCPM3ForCausalLM"}


def read(config: Config, model_type: str) -> ModelSpec:
    width = config.value("intermediate_size")
    if model_type == "youtu":
        return read_with_latent(config, model_type, Defaults(tied=True), intermediate_size=width)
    config.only("rope_interleave", False)
    values = divided(config, "hidden_size", "num_attention_heads")
    defaults = Defaults(768, 256, 64, values, 1e-5, tied=True, qk_rope_head_dim=32, interleave=False)
    model = read_with_latent(config, model_type, defaults, intermediate_size=width)
    return replace(model, multipliers=_multipliers(config, model))


def _multipliers(config: Config, model: ModelSpec) -> Multipliers:
    """The constants of MiniCPM3, under the names of Granite's. null scales neither residual nor logits. model: without
    them."""
    depth, base = config.optional("scale_depth", 1.4), config.nullable_integer("dim_model_base", 256)
    return Multipliers(
        embedding_multiplier=config.positive("scale_emb", 12.0),
        attention_multiplier=_usual_scale(model),
        residual_multiplier=1.0 if depth is None else depth / sqrt(model.num_hidden_layers),
        logits_scaling=1.0 if base is None else model.hidden_size / base,
    )


def _usual_scale(model: ModelSpec) -> float:
    """By which latent attention multiplies scores where no constant of the model says it."""
    return replace(model, multipliers=None).scores_scale or model.head_dim**-0.5


def write(model: ModelSpec) -> dict[str, Any]:
    keys = written_with_latent(model)
    if model.model_type == "youtu":
        return keys
    del keys["rope_interleave"]
    return keys | _scales(model)


def _scales(model: ModelSpec) -> dict[str, Any]:
    """The keys that `_multipliers` reads.

    Raises AutoshardError for multipliers that no config of MiniCPM3 has.
    """
    scaled, size = model.multipliers, model.hidden_size
    assert scaled is not None, model.name
    base = max(1, round(size / scaled.logits_scaling))
    for field, other in (("attention_multiplier", _usual_scale(model)), ("logits_scaling", size / base)):
        if (value := getattr(scaled, field)) != other:
            raise AutoshardError(
                f"{field}={value} of multipliers of {model.name} cannot be written as a config of "
                f"{model.model_type}; {other} can"
            )
    return {
        "scale_emb": scaled.embedding_multiplier,
        "scale_depth": scaled.residual_multiplier * sqrt(model.num_hidden_layers),
        "dim_model_base": base,
    }
