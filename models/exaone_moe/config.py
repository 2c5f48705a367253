"""The config.json of K-EXAONE."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import corrected_router, expert_keys, experts, kind_keys
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.olmo2.config import exaone_kind_keys, exaone_kinds
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"exaone_moe": "ExaoneMoeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=32)
NAMED = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


def read(config: Config, model_type: str) -> ModelSpec:
    config.only("attention_bias", False)
    if config.is_null("sliding_window"):
        raise AutoshardError(f"sliding_window=null of {config.name} is not supported; a number of tokens is")
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        **exaone_kinds(config),
        **corrected_router(config, n_group=1, topk_group=1, scaling=2.5),
        **experts(config, first_dense=1, shared=1, says_kinds=True, named=NAMED),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_as_llama(model) | expert_keys(model, NAMED) | kind_keys(model) | exaone_kind_keys(model)
