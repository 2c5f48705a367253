"""The config.json of Mistral Small 4's text model."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, rope
from autoshard.models.deepseek.config import (
    UNSUPPORTED,
    Defaults,
    expert_keys,
    experts,
    head_dims,
    read_with_latent,
    written_with_latent,
)
from autoshard.models.ministral3.config import queries_that_grow, written_growth
from autoshard.spec.model import ModelSpec
from autoshard.spec.router import GREEDY, Router

__all__ = ["ARCHITECTURES", "UNSUPPORTED", "read", "write"]

ARCHITECTURES = {"mistral4": "Mistral4ForCausalLM"}
DEFAULTS = Defaults(q_lora_rank=1024, kv_lora_rank=256, qk_nope_head_dim=64)
FACTOR, ORIGINAL = 128.0, 8192
"""By which positions are stretched, and how many there were before, where a config does not say."""
PART = "partial_rotary_factor"


def read(config: Config, model_type: str) -> ModelSpec:
    for key in ("n_group", "topk_group"):
        config.only(key, 1)
    unturned, turned = head_dims(config, DEFAULTS)
    part, said = turned / (unturned + turned), config.rope().get(PART)
    if said not in (None, part):
        raise AutoshardError(f"{PART}={show(said)} of {config.name} is not supported; {part:g} is: qk_rope_head_dim")
    theta, _ = rope(config, 10_000.0, partial_is_known=True)
    return read_with_latent(
        config,
        model_type,
        DEFAULTS,
        intermediate_size=config.value("moe_intermediate_size"),
        rope_theta=theta,
        **queries_that_grow(config, FACTOR, ORIGINAL),
        router=Router("softmax", GREEDY, routed_scaling_factor=config.positive("routed_scaling_factor", 1.0)),
        norm_topk_prob=config.switch("norm_topk_prob", True),
        **experts(config, first_dense=0, shared=1),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_growth(model, written_with_latent(model) | expert_keys(model))
