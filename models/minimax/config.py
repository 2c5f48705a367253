"""The config.json of MiniMax-Text-01 and MiniMax-M1."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, head_dim, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.spec.linear_attention import LightningAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, LIGHTNING, MOST_REPEATED, SLIDING_ATTENTION
from autoshard.spec.weighted_residual import WeightedResidual

ARCHITECTURES = {"minimax": "MiniMaxForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8)
ALONE: dict[str, Any] = {"router_jitter_noise": 0.0, "shared_intermediate_size": 0, "postnorm": True}
"""Key -> its only value here, also without the key."""
LINEAR = "linear_attention"
"""The word of layer_types for lightning attention."""
OLD_WORDS = {LINEAR: 0, FULL_ATTENTION: 1}
"""Word of layer_types -> that of attn_type_list, by which the published code knows it."""
OLD_NAMES = {
    f"{part}_{letter}_factor": f"layernorm_{part.replace('attn', 'attention')}_{letter}"
    for part in ("full_attn", "linear_attn", "mlp")
    for letter in ("alpha", "beta")
}
"""Weight of the residual -> its key in the published code, which must say the same where it is given."""


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ALONE.items():
        config.only(key, known)
    layers, window = config.integer("num_hidden_layers", at_most=MOST_REPEATED), config.window(None)
    words = tuple(FULL_ATTENTION if (layer + 1) % 2 else LINEAR for layer in range(layers))
    if config.gives("layer_types"):
        words = config.words("layer_types", layers, tuple(OLD_WORDS))
    config.only("attn_type_list", [OLD_WORDS[word] for word in words])
    attention = FULL_ATTENTION if window is None else SLIDING_ATTENTION
    more: dict[str, Any] = {"sliding_window": window if FULL_ATTENTION in words else None}
    block_size = config.integer("block_size", 256)
    if LINEAR in words:
        more["layer_types"] = tuple(LIGHTNING if word == LINEAR else attention for word in words)
        more["lightning_attention"] = LightningAttention(block_size)
    weights = {name: config.positive(name, 1.0) for name in OLD_NAMES}
    for name, old in OLD_NAMES.items():
        config.only(old, weights[name])
    width = head_dim(config)
    turned = config.integer("rotary_dim", width)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **partial_rope(config, DEFAULTS.rope_theta, turned / width),
        num_local_experts=config.value("num_local_experts", 8),
        num_experts_per_tok=config.value("num_experts_per_tok", 2),
        weighted_residual=WeightedResidual(**weights),
        **routers_loss(config),
        **more,
    )


def write(model: ModelSpec) -> dict[str, Any]:
    assert model.weighted_residual is not None, model.name
    words = [
        LINEAR if model.mixer_of(layer) == LIGHTNING else FULL_ATTENTION for layer in range(model.num_hidden_layers)
    ]
    sizes = {} if model.lightning_attention is None else vars(model.lightning_attention)
    return (
        written_as_llama(model)
        | vars(model.weighted_residual)
        | {
            "layer_types": words,
            "sliding_window": model.sliding_window,
            "rotary_dim": model.rotary_dim,
            "num_local_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
        }
        | sizes
        | routers_loss_keys(model)
    )
