"""The config.json of Bamba."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, head_dim, rope, rope_parameters
from autoshard.models.granite_hybrid.config import expanded, state_space, state_space_keys
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, MAMBA, MOST_REPEATED

ARCHITECTURES = {"bamba": "BambaForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=8)
POSITIONS = {"max_position_embeddings": 262_144}
"""Left out of published configs."""
PART, ROTARY_PART = "partial_rotary_factor", 0.5
"""The part of each head that turns: transformers has it so whatever a config says, but for its rope_parameters."""
ATTENTION_BLOCKS = "attn_layer_indices"
UNSUPPORTED: tuple[tuple[str, object], ...] = (("mamba_proj_bias", True),)


def read(config: Config, model_type: str) -> ModelSpec:
    config.fill(POSITIONS)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    attention = config.places(ATTENTION_BLOCKS, layers) if config.gives(ATTENTION_BLOCKS) else frozenset()
    types = tuple(FULL_ATTENTION if layer in attention else MAMBA for layer in range(layers))
    sizes = state_space(config, expanded(config), "mamba_expand x hidden_size")
    theta, scaling = rope(config, DEFAULTS.rope_theta, partial_is_known=True)
    part = config.rope().get(PART)
    for key, known in ((PART, ROTARY_PART), ("attn_rotary_emb", _turned(config)), ("z_loss_coefficient", 0.0)):
        config.only(key, known)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        layer_types=types if MAMBA in types else (),
        mamba=sizes if MAMBA in types else None,
        attention_bias=config.value("attention_bias", False),
        mlp_bias=config.value("mlp_bias", False),
        rope_theta=theta,
        rope_scaling=scaling,
        partial_rotary_factor=ROTARY_PART if part is None else part,
    )


def _turned(config: Config) -> int:
    """Numbers of each head that turn, a key of published configs that transformers does not read."""
    return int(head_dim(config) * ROTARY_PART)


def write(model: ModelSpec) -> dict[str, Any]:
    types = model.layer_types or (FULL_ATTENTION,) * model.num_hidden_layers
    rotary = rope_parameters(model)
    rotary["rope_parameters"][PART] = model.partial_rotary_factor
    return (
        written_as_llama(model)
        | state_space_keys(model)
        | rotary
        | {
            ATTENTION_BLOCKS: [layer for layer, word in enumerate(types) if word == FULL_ATTENTION],
            "attention_bias": model.attention_bias,
            "mlp_bias": model.mlp_bias,
        }
    )
