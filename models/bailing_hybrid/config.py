"""The config.json of Ling 3.0."""

from __future__ import annotations

from typing import Any

from autoshard.files.fields import check_flag, check_negative
from autoshard.models.config_fields import Config, rope
from autoshard.models.deepseek.config import Defaults, read_with_experts, written_with_experts
from autoshard.models.kimi_linear.config import NAMED as KIMI_NAMED
from autoshard.models.kimi_linear.config import POSITIONS, UNTIED
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LINEAR_ATTENTION, MOST_REPEATED

ARCHITECTURES = {"bailing_hybrid": "BailingHybridForCausalLM"}
DEFAULTS = Defaults(first_dense=2)
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True), UNTIED)
NAMED = {**KIMI_NAMED, "scoring_func": "score_function"}
"""Keys of DeepSeek's experts -> the family's own."""
SAME = {
    **{key: own for key, own in NAMED.items() if key not in ("n_routed_experts", "scoring_func")},
    "num_local_experts": NAMED["n_routed_experts"],
    "max_position_embeddings": POSITIONS,
}
"""Keys that say the same as the family's own, which transformers writes."""
THETA, TAPS, HEAD_DIM, GROUP = 6_000_000.0, 4, 128, 6
"""Without the keys; the last block of every group has latent attention."""
LOWER_BOUND = -5.0


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config. Modules for multi-token prediction are left out, as in transformers."""
    config.fill({own: config.value(key) for key, own in SAME.items() if config.gives(key)})
    config.fill({"q_lora_rank": None})
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    group = config.integer("layer_group_size", GROUP)
    types = tuple(LINEAR_ATTENTION if (layer + 1) % group else FULL_ATTENTION for layer in range(layers))
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, (FULL_ATTENTION, LINEAR_ATTENTION))
    theta, scaling = rope(config, THETA)
    return read_with_experts(
        config,
        model_type,
        DEFAULTS,
        NAMED,
        layer_types=types if LINEAR_ATTENTION in types else (),
        linear_attention=_linear_attention(config) if LINEAR_ATTENTION in types else None,
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=config.value(POSITIONS, 2**18),
    )


def _linear_attention(config: Config) -> LinearAttention:
    """The delta rule's sizes. transformers writes what it computes of other keys beside these, under its own names."""
    heads = config.integer("linear_num_heads", config.integer("num_attention_heads"), at_most=MOST_REPEATED)
    head = config.integer("linear_head_dim", config.integer("head_dim", HEAD_DIM))
    taps = config.integer("linear_conv_kernel_dim", config.integer("short_conv_kernel_size", TAPS))
    is_bounded, bound = config.value("kda_safe_gate", True), config.value("kda_lower_bound", LOWER_BOUND)
    check_flag(config.name, "kda_safe_gate", is_bounded)
    check_negative(config.name, "kda_lower_bound", bound)
    return LinearAttention(heads, heads, head, head, taps, kda_lower_bound=float(bound) if is_bounded else None)


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_with_experts(model, NAMED)
    for key in ("q_lora_rank", "rope_interleave", "topk_method", NAMED["scoring_func"]):
        del config[key]
    config[POSITIONS] = config.pop("max_position_embeddings")
    config["layer_types"] = list(model.layer_types) or [FULL_ATTENTION] * model.num_hidden_layers
    if (linear := model.linear_attention) is not None:
        config |= {
            "head_dim": linear.linear_key_head_dim,
            "linear_num_heads": linear.linear_num_key_heads,
            "short_conv_kernel_size": linear.linear_conv_kernel_dim,
            "kda_safe_gate": linear.kda_lower_bound is not None,
            "kda_lower_bound": linear.kda_lower_bound or LOWER_BOUND,
        }
    return config
