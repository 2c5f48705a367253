"""The config.json of GLM-4.5 and GLM-4.5-Air."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rotary, rope
from autoshard.models.deepseek.config import corrected_router, expert_keys, experts
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"glm4_moe": "Glm4MoeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=8)
PARTIAL_ROTARY_FACTOR = 0.5


def read(config: Config, model_type: str) -> ModelSpec:
    rope_theta, rope_scaling = rope(config, DEFAULTS.rope_theta, partial_is_known=True)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        partial_rotary_factor=partial_rotary(config, PARTIAL_ROTARY_FACTOR),
        attention_bias=config.value("attention_bias", False),
        use_qk_norm=config.value("use_qk_norm", False),
        **corrected_router(config, n_group=1, topk_group=1, scaling=1.0),
        **experts(config, first_dense=1, shared=1),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    more = {
        "partial_rotary_factor": model.partial_rotary_factor,
        "attention_bias": model.attention_bias,
        "use_qk_norm": model.use_qk_norm,
    }
    return written_as_llama(model) | expert_keys(model) | more
