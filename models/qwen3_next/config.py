"""The config.json of Qwen3-Next."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from autoshard.models.config_fields import Config, partial_rotary, rope
from autoshard.models.llama.config import Defaults, read_as_llama
from autoshard.models.qwen.config import mixture, mixture_keys
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LINEAR_ATTENTION, MOST_REPEATED

ARCHITECTURES = {"qwen3_next": "Qwen3NextForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=2, head_dim=256)
UNSUPPORTED: tuple[tuple[str, object], ...] = (("attention_bias", True),)
SIZES = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
"""Key -> the value that transformers takes without it."""
INTERVAL = 4


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Qwen3-Next. Every full_attention_interval-th block has attention, the others linear
    attention, unless layer_types says otherwise."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, (FULL_ATTENTION, LINEAR_ATTENTION))
    else:
        interval = config.integer("full_attention_interval", INTERVAL)
        types = tuple(LINEAR_ATTENTION if (layer + 1) % interval else FULL_ATTENTION for layer in range(layers))
    theta, scaling = rope(config, DEFAULTS.rope_theta, partial_is_known=True)
    sizes = {name: config.integer(name, default) for name, default in SIZES.items()}
    linear = {"layer_types": types, "linear_attention": LinearAttention(**sizes)} if LINEAR_ATTENTION in types else {}
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        rope_theta=theta,
        rope_scaling=scaling,
        partial_rotary_factor=partial_rotary(config, 0.25),
        shared_expert_intermediate_size=config.value("shared_expert_intermediate_size", 512),
        **mixture(config, norm_topk_prob=True),
        **linear,
    )


def write(model: ModelSpec) -> dict[str, Any]:
    linear = model.linear_attention
    config = mixture_keys(model) | {
        "partial_rotary_factor": model.partial_rotary_factor,
        "layer_types": list(model.layer_types) or [FULL_ATTENTION] * model.num_hidden_layers,
        "shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        "attention_bias": False,
    }
    return config | ({} if linear is None else {one.name: getattr(linear, one.name) for one in fields(linear)})
