"""The config.json of Hy3."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import corrected_router, expert_keys, experts, kind_keys
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"hy_v3": "HYV3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=11_158_840.0, num_key_value_heads=8, head_dim=128)
NAMED = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "router_scaling_factor",
}
ALONE: dict[str, Any] = {"norm_topk_prob": True, "n_group": 1, "topk_group": 1, "qk_norm": True, "mlp_bias": False}
"""Key -> its only value here, also without the key."""


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ALONE.items():
        config.only(key, known)
    config.integer("num_shared_experts", 1)  # of 0 transformers makes one as wide as a dense block's MLP
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        attention_bias=config.value("attention_bias", False),
        **corrected_router(config, n_group=1, topk_group=1, scaling=2.826, named=NAMED),
        **experts(config, first_dense=1, shared=1, says_kinds=True, named=NAMED),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    keys = written_as_llama(model) | expert_keys(model, NAMED) | kind_keys(model)
    return keys | {"attention_bias": model.attention_bias}
