"""The config.json of Ministral 3's text models."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config, rope, stretched
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"ministral3": "Ministral3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8, head_dim=128)
BETA = "llama_4_scaling_beta"
YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, BETA: 0.1}
FACTOR, ORIGINAL = 16.0, 16384
"""Positions where a config does not say: by how much they are stretched, and how many there were before."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Ministral 3. A sliding window is that of all blocks, whatever layer_types says, as
    transformers has it."""
    theta, _ = rope(config, DEFAULTS.rope_theta)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        rope_theta=theta,
        sliding_window=config.window(None),
        **queries_that_grow(config, FACTOR, ORIGINAL),
    )


def queries_that_grow(config: Config, factor: float, original: int) -> dict[str, Any]:
    """The fields of positions stretched by YaRN, and of queries that grow with them. factor, original: where a config
    says nothing of positions."""
    positions = config.rope({**YARN, "factor": factor, "original_max_position_embeddings": original})
    if positions.get(BETA) is None:  # transformers cannot do without
        raise AutoshardError(f"{BETA} is missing from rope_parameters of the config of {config.name}")
    return {
        "rope_scaling": stretched(config, positions),
        "attention_scores": AttentionScores(llama_4_scaling_beta=positions[BETA]),
    }


def write(model: ModelSpec) -> dict[str, Any]:
    return written_growth(model, written_as_llama(model)) | {"sliding_window": model.sliding_window}


def written_growth(model: ModelSpec, config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a config, those of rotary positions where `queries_that_grow` reads them."""
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
    beta = model.attention_scores.llama_4_scaling_beta
    return config | {"rope_parameters": {**scaling, "rope_theta": theta, BETA: beta}}
