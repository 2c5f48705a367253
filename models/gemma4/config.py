"""The config.json of Gemma 4's text models: the dense 31B, E2B and E4B, and the mixture 26B-A4B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_flag, show
from autoshard.models.config_fields import Config, rope_parameters_of_kinds, ropes_of_kinds
from autoshard.models.gemma.config import usual_fields
from autoshard.models.llama.config import Defaults, every_few, read_as_llama, written_as_llama
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ATTENTION_TYPES, FULL_ATTENTION, MOST_REPEATED
from autoshard.spec.rope import PROPORTIONAL

ARCHITECTURES = {"gemma4_text": "Gemma4ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=1_000_000.0, num_key_value_heads=4, head_dim=256)
LOCAL_THETA = 10_000.0
ROPE = {"rope_type": PROPORTIONAL, "partial_rotary_factor": 0.25}
"""Positions of blocks with full attention without the key."""
WINDOW, PATTERN, GLOBAL_HEAD_DIM = 512, 6, 512
"""Without the keys; every so many blocks there is one without a window."""
SCALE = 1.0
"""By which attention multiplies its scores, whatever a head's width is."""
VOCABULARY = 262_144
SIZES = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 131_072,
    "hidden_size_per_layer_input": 256,
}
"""Sizes in transformers: the text_config of a published one leaves out those that are its own too."""


def read(config: Config, model_type: str) -> ModelSpec:
    config.fill(SIZES)
    if (seen := config.value("use_bidirectional_attention", "vision")) != "vision":
        raise AutoshardError(
            f"use_bidirectional_attention={show(seen)} of {config.name} is not supported; null is, and vision, which "
            "says nothing of text"
        )
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = every_few(layers, PATTERN)
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, ATTENTION_TYPES)
    if types[-1] != FULL_ATTENTION:
        raise AutoshardError(
            f"layer_types of {config.name} must end in {FULL_ATTENTION}: transformers takes the last block for one"
        )
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **usual_fields(config),
        sliding_window=config.integer("sliding_window", WINDOW),
        layer_types=types,
        attention_scores=AttentionScores(query_pre_attn_scalar=SCALE**-2),
        global_attention=_global_attention(config, types),
        final_logit_softcapping=config.optional("final_logit_softcapping", None),
        **_ropes(config),
        **_experts(config),
        **_own_inputs(config),
        **_shared_keys(config),
    )


def _global_attention(config: Config, types: tuple[str, ...]) -> GlobalAttention:
    """The heads of blocks with full attention, by the keys of published configs, or by per_layer_config, in whose place
    transformers 5.23 writes what these blocks have unlike the others."""
    shared, width = config.value("attention_k_eq_v", False), config.integer("global_head_dim", GLOBAL_HEAD_DIM)
    keys = own_keys = config.integer("num_key_value_heads", DEFAULTS.num_key_value_heads, at_most=MOST_REPEATED)
    if config.gives("num_global_key_value_heads") and shared is True:  # without it, transformers does not read them
        keys = config.integer("num_global_key_value_heads", at_most=MOST_REPEATED)
    if config.gives("per_layer_config"):
        said = _said_of_blocks(config, types)
        width = said.get("head_dim", config.integer("head_dim", DEFAULTS.head_dim))
        keys = said.get("num_key_value_heads", own_keys)
    return GlobalAttention(keys, width, shared)


def _said_of_blocks(config: Config, types: tuple[str, ...]) -> Mapping[str, Any]:
    """The keys and values that per_layer_config has of each block with full attention; none where it is empty.

    Raises AutoshardError where it says different things of these blocks, nothing of one, or something of others.
    """
    said = config.of_blocks()
    full = {layer for layer, word in enumerate(types) if word == FULL_ATTENTION}
    values = list(said.values()) or [{}]
    if (said and {*said} != full) or any(value != values[0] for value in values):
        raise AutoshardError(
            f"per_layer_config={show(said)} of {config.name} must say the same of each block that is {FULL_ATTENTION}, "
            "and nothing of others"
        )
    if not isinstance(values[0], Mapping) or not {*values[0]} <= {"head_dim", "num_key_value_heads"}:
        raise AutoshardError(
            f"per_layer_config of {config.name} says {show(values[0])} of a block; it may say head_dim and "
            "num_key_value_heads"
        )
    return values[0]


def _ropes(config: Config) -> dict[str, Any]:
    """The fields of rotary positions: a part of each head's frequencies in blocks with full attention, and another base
    in those with a window."""
    theta, scaling, local = ropes_of_kinds(config, DEFAULTS.rope_theta, LOCAL_THETA, ROPE, (PROPORTIONAL,))
    return {"rope_theta": theta, "rope_scaling": scaling, "rope_local_base_freq": local}


def _experts(config: Config) -> dict[str, Any]:
    """The fields of the experts and of the MLP beside them, which is as an expert that every token goes to, and the key
    of an expert's width."""
    config.gives("num_experts")  # a dense config may say it: transformers reads it of mixtures alone
    if config.value("enable_moe_block", False) is not True:
        return {}
    return {
        "width": "moe_intermediate_size",
        "shared_expert_intermediate_size": config.integer("intermediate_size"),
        "num_local_experts": config.value("num_experts"),
        "num_experts_per_tok": config.value("top_k_experts"),
    }


def _own_inputs(config: Config) -> dict[str, Any]:
    """The width of the input that each block has of its own (E2B, E4B), 0 or null for none.

    Raises AutoshardError where its tables have other tokens than the embedding's.
    """
    if config.is_null("hidden_size_per_layer_input"):
        return {}
    if not (width := config.integer("hidden_size_per_layer_input", at_least=0)):
        config.gives("vocab_size_per_layer_input")  # transformers reads it of none
        return {}
    tokens = config.integer("vocab_size")
    if (rows := config.value("vocab_size_per_layer_input", VOCABULARY)) != tokens:
        raise AutoshardError(
            f"vocab_size_per_layer_input={show(rows)} of {config.name} is not supported; vocab_size={tokens} is"
        )
    return {"hidden_size_per_layer_input": width}


def _shared_keys(config: Config) -> dict[str, Any]:
    """How many of the last blocks take keys and values of an earlier one (E2B, E4B), and their MLPs, which may be twice
    as wide."""
    count, wide = 0, config.value("use_double_wide_mlp", False)
    if not config.is_null("num_kv_shared_layers"):
        count = config.integer("num_kv_shared_layers", 0, at_least=0, at_most=MOST_REPEATED)
    check_flag(config.name, "use_double_wide_mlp", wide)
    if not count or not wide:
        return {"num_kv_shared_layers": count}
    if config.value("enable_moe_block", False) is True:
        raise AutoshardError(
            f"use_double_wide_mlp={wide} of {config.name} is not supported with enable_moe_block; False is"
        )
    return {"num_kv_shared_layers": count, "dense_intermediate_size": 2 * config.integer("intermediate_size")}


def write(model: ModelSpec) -> dict[str, Any]:
    wide, written = model.global_attention, written_as_llama(model)
    assert wide is not None, model.name
    written["hidden_activation"] = written.pop("hidden_act")
    del written["rope_theta"], written["rope_scaling"]
    written |= {
        "global_head_dim": wide.global_head_dim,
        "num_global_key_value_heads": wide.num_global_key_value_heads if wide.attention_k_eq_v else None,
        "attention_k_eq_v": wide.attention_k_eq_v,
        "attention_bias": model.attention_bias,
        "sliding_window": model.sliding_window,
        "layer_types": list(model.layer_types),
        **rope_parameters_of_kinds(model),
        "final_logit_softcapping": model.final_logit_softcapping,
        "hidden_size_per_layer_input": model.hidden_size_per_layer_input or 0,
        "vocab_size_per_layer_input": model.vocab_size,
        "num_kv_shared_layers": model.num_kv_shared_layers,
        "use_double_wide_mlp": model.dense_intermediate_size > 0,
        "use_bidirectional_attention": None,
        "enable_moe_block": model.is_moe,
    }
    if not wide.attention_k_eq_v and wide.num_global_key_value_heads != model.num_key_value_heads:
        own = {"head_dim": wide.global_head_dim, "num_key_value_heads": wide.num_global_key_value_heads}
        full_layers = (layer for layer, word in enumerate(model.layer_types) if word == FULL_ATTENTION)
        written["per_layer_config"] = {str(layer): own for layer in full_layers}
    if model.is_moe:
        written |= {
            "intermediate_size": model.shared_expert_intermediate_size,
            "moe_intermediate_size": model.intermediate_size,
            "num_experts": model.num_local_experts,
            "top_k_experts": model.num_experts_per_tok,
        }
    return written
