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
YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    BETA: 0.1,
}
"""Positions where a config does not say."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Ministral 3. A sliding window is that of all blocks, whatever layer_types says, as
    transformers has it."""
    theta, _ = rope(config, DEFAULTS.rope_theta)
    positions = config.rope(YARN)
    if positions.get(BETA) is None:  # transformers cannot do without
        raise AutoshardError(f"{BETA} is missing from rope_parameters of the config of {config.name}")
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        rope_theta=theta,
        rope_scaling=stretched(config, positions),
        sliding_window=config.window(None),
        attention_scores=AttentionScores(llama_4_scaling_beta=positions[BETA]),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model)
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
    beta = model.attention_scores.llama_4_scaling_beta
    positions = {**scaling, "rope_theta": theta, BETA: beta}
    return config | {"sliding_window": model.sliding_window, "rope_parameters": positions}
