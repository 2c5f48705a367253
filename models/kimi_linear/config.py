"""The config.json of Kimi Linear."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config
from autoshard.models.deepseek.config import Defaults, read_with_experts, written_with_experts
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LINEAR_ATTENTION, MOST_REPEATED, NOPE

ARCHITECTURES = {"kimi_linear": "KimiLinearForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, n_group=1, topk_group=1, scaling=2.446, first_dense=1)
UNTIED = ("tie_word_embeddings", True)
"""Tables that transformers' class keeps apart whatever the key says."""
UNSUPPORTED = (("attention_bias", True), ("mla_use_nope", False), ("output_router_logits", True), UNTIED)
NAMED = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "scoring_func": "moe_router_activation_func",
}
"""Keys of DeepSeek's experts -> the family's own."""
POSITIONS = "model_max_length"
THETA = 10_000.0
"""Says nothing, as nothing turns."""
SIZES = {
    "head_dim": ("linear_head_dim", 128),
    "num_heads": ("linear_num_heads", 32),
    "short_conv_kernel_size": ("linear_conv_kernel_dim", 4),
}
"""Key of linear_attn_config -> (transformers' key, the value that it takes without both)."""
BLOCKS = {LINEAR_ATTENTION: "kda_layers", FULL_ATTENTION: "full_attn_layers"}
"""Word of layer_types -> key of linear_attn_config with the blocks that are of it, of which the first one is 1."""
INTERVAL = 4


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config, as it was published or as transformers writes it."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    linear = config.inner("linear_attn_config")
    types = _mixers(config, linear, layers)
    more: dict[str, Any] = {"layer_types": types}
    if LINEAR_ATTENTION in types:
        head, heads, taps = (
            linear.integer(key, config.integer(other, default)) for key, (other, default) in SIZES.items()
        )
        more["linear_attention"] = LinearAttention(heads, heads, head, head, taps)
    config.fill({"q_lora_rank": None})
    return read_with_experts(
        config,
        model_type,
        DEFAULTS,
        NAMED,
        position_types=(NOPE,) * layers,
        rope_theta=THETA,
        rope_scaling=None,
        max_position_embeddings=config.value(POSITIONS, config.value("max_position_embeddings", 2**20)),
        **more,
    )


def _mixers(config: Config, linear: Config, layers: int) -> tuple[str, ...]:
    """The layer_types of a config: its own, or those of both lists of linear_attn_config. Without either, every fourth
    block behind the first has attention and all others have linear attention, as in transformers."""
    if config.gives("layer_types"):
        return config.words("layer_types", layers, (FULL_ATTENTION, LINEAR_ATTENTION))
    if not all(map(linear.gives, BLOCKS.values())):
        return tuple(FULL_ATTENTION if layer and layer % INTERVAL == 0 else LINEAR_ATTENTION for layer in range(layers))
    places = {word: linear.places(key, layers, first=1) for word, key in BLOCKS.items()}
    for layer in range(layers):
        if sum(layer in some for some in places.values()) != 1:
            raise AutoshardError(
                f"{' and '.join(BLOCKS.values())} of {config.name} must have block {layer + 1} once between them"
            )
    return tuple(FULL_ATTENTION if layer in places[FULL_ATTENTION] else LINEAR_ATTENTION for layer in range(layers))


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_with_experts(model, NAMED)
    for key in ("rope_theta", "rope_scaling", "rope_interleave", "topk_method"):
        del config[key]
    config[POSITIONS] = config.pop("max_position_embeddings")
    config["layer_types"] = list(model.layer_types) or [FULL_ATTENTION] * model.num_hidden_layers
    if (linear := model.linear_attention) is not None:
        sizes = linear.linear_key_head_dim, linear.linear_num_key_heads, linear.linear_conv_kernel_dim
        config |= {key: size for (key, _), size in zip(SIZES.values(), sizes, strict=True)}
    return config
