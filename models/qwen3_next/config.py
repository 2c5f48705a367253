"""The config.json of Qwen3-Next, and of Qwen3.5's text models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.models.qwen.config import mixture, mixture_keys
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LINEAR_ATTENTION, MOST_REPEATED

ARCHITECTURES = {
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
_MIXTURE = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=2, head_dim=256)
DEFAULTS = {
    "qwen3_next": _MIXTURE,
    "qwen3_5_text": replace(_MIXTURE, num_key_value_heads=4),
    "qwen3_5_moe_text": _MIXTURE,
}
UNSUPPORTED: tuple[tuple[str, object], ...] = (("attention_bias", True), ("attn_output_gate", False))
SIZES = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
"""Key -> the value that transformers takes without it."""
INTERVAL = 4
ALONE: dict[str, Any] = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
"""Key -> its only value for Qwen3.5's mixtures, which do not have it."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Every full_attention_interval-th block has attention, the others linear attention, unless
    layer_types says otherwise. Of positions that images have in three directions (mrope) text has one."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, (FULL_ATTENTION, LINEAR_ATTENTION))
    else:
        interval = config.integer("full_attention_interval", INTERVAL)
        types = tuple(LINEAR_ATTENTION if (layer + 1) % interval else FULL_ATTENTION for layer in range(layers))
    defaults = DEFAULTS[model_type]
    sizes: dict[str, Any] = {name: config.integer(name, default) for name, default in SIZES.items()}
    config.only("output_gate_type", "swish")  # of linear attention
    linear: dict[str, Any] = {}
    if LINEAR_ATTENTION in types:
        linear = {"layer_types": types, "linear_attention": LinearAttention(**sizes)}
    more = _experts(config, model_type)
    return read_as_llama(
        config,
        model_type,
        defaults,
        width="moe_intermediate_size" if more else "intermediate_size",
        **partial_rope(config, defaults.rope_theta, 0.25),
        **more,
        **linear,
    )


def _experts(config: Config, model_type: str) -> dict[str, Any]:
    """The fields of routed and shared experts; nothing of a model_type without."""
    if model_type == "qwen3_5_text":
        return {}
    shared = {"shared_expert_intermediate_size": config.value("shared_expert_intermediate_size", 512)}
    if model_type == "qwen3_next":
        return shared | mixture(config, norm_topk_prob=True)
    for key, known in ALONE.items():
        config.only(key, known)
    names = {"num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_tok"}
    return shared | {field: config.value(key) for field, key in names.items()} | routers_loss(config)


def write(model: ModelSpec) -> dict[str, Any]:
    linear = model.linear_attention
    config = written_as_llama(model) if model.model_type == "qwen3_5_text" else _mixture_keys(model)
    config |= {
        "partial_rotary_factor": model.partial_rotary_factor,
        "layer_types": list(model.layer_types) or [FULL_ATTENTION] * model.num_hidden_layers,
        "attention_bias": False,
    }
    return config | ({} if linear is None else {name: getattr(linear, name) for name in SIZES})


def _mixture_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys of the Llama form and those that `_experts` reads."""
    shared = {"shared_expert_intermediate_size": model.shared_expert_intermediate_size}
    if model.model_type == "qwen3_next":
        return mixture_keys(model) | shared
    config = written_as_llama(model) | routers_loss_keys(model) | shared
    config["moe_intermediate_size"] = config.pop("intermediate_size")
    return config | {"num_experts": model.num_local_experts, "num_experts_per_tok": model.num_experts_per_tok}
