"""The config.json of StableLM."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope, shared_out
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"stablelm": "StableLmForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=32)
ROTARY_PART = 0.25


def read(config: Config, model_type: str) -> ModelSpec:
    config.only("hidden_dropout", 0.0)  # of the MLP's output alone
    shared_out(config, "hidden_size", "num_attention_heads")  # checks head_dim
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        eps="layer_norm_eps",
        attention_bias=config.value("use_qkv_bias", False),
        use_parallel_residual=config.value("use_parallel_residual", False),
        use_qk_norm=config.value("qk_layernorm", False),
        **partial_rope(config, DEFAULTS.rope_theta, ROTARY_PART),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_as_llama(model, "layer_norm_eps") | {
        "use_qkv_bias": model.attention_bias,
        "use_parallel_residual": model.use_parallel_residual,
        "qk_layernorm": model.use_qk_norm,
        "partial_rotary_factor": model.partial_rotary_factor,
    }
