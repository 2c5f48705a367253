"""The config.json of Granite with sliding windows, granite_swa, and of its mixtures, granitemoe_swa."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, one_kind, rope
from autoshard.models.granite_hybrid.config import mixture_fields
from autoshard.models.llama.config import Defaults, multipliers, needed_windows, read_as_llama, written_as_llama
from autoshard.models.mixtral.config import routers_loss_keys
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    ATTENTION_TYPES,
    FULL_ATTENTION,
    MOST_REPEATED,
    NOPE,
    ROPE,
    SLIDING_ATTENTION,
)

ARCHITECTURES = {"granite_swa": "GraniteSWAForCausalLM", "granitemoe_swa": "GraniteMoeSWAForCausalLM"}
DEFAULTS = {
    "granite_swa": Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=4),
    "granitemoe_swa": Defaults(norm_eps=1e-6, rope_theta=10_000.0),
}
WINDOW, PATTERN = 128, 4
"""Without the keys: every so many blocks, from the first on, there is one without a window."""
BASES = "layer_rope_theta"


def read(config: Config, model_type: str) -> ModelSpec:
    if config.is_null("attention_multiplier"):
        raise AutoshardError(
            f"attention_multiplier=null of {config.name} is not supported: transformers' attention with sinks has no "
            "scale then; a number is"
        )
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = tuple(SLIDING_ATTENTION if layer % PATTERN else FULL_ATTENTION for layer in range(layers))
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, ATTENTION_TYPES)
    more = {
        "attention_bias": config.value("attention_bias", False),
        "attention_scores": AttentionScores(sinks=True),
        "multipliers": multipliers(config),
        **needed_windows(config, WINDOW, types),
        **_positions(config, DEFAULTS[model_type].rope_theta, types),
    }
    if model_type == "granite_swa":
        more["mlp_bias"] = config.value("mlp_bias", False)
        more["tie_word_embeddings"] = config.value("tie_word_embeddings", True)
    else:
        count = config.integer("num_local_experts", 8, at_most=MOST_REPEATED)
        more |= mixture_fields(config, count, config.integer("shared_intermediate_size", 0, at_least=0))
    return read_as_llama(config, model_type, DEFAULTS[model_type], **more)


def _positions(config: Config, default: float, types: tuple[str, ...]) -> dict[str, Any]:
    """The fields of rotary positions, whose base layer_rope_theta gives for each block, 0 for none. default: the base
    without a key. types: the layer_types.

    Raises AutoshardError for other bases than one of blocks with a window and one of those without.
    """
    theta, scaling = rope(config, default)
    if not config.gives(BASES):
        return {"rope_theta": theta, "rope_scaling": scaling}
    bases = _bases(config, len(types))
    full, local = (_base(config, bases, types, word) for word in ATTENTION_TYPES)
    found: dict[str, Any] = {"rope_theta": full or local or theta, "rope_scaling": scaling}
    if full and local and full != local:
        if scaling is not None:
            raise AutoshardError(
                f"{BASES} of {config.name} has {show(full)} in blocks without a window and {show(local)} in those with "
                f"one, which is not supported with rope_type={scaling.rope_type}; one base is"
            )
        found["rope_local_base_freq"] = local
    positions = tuple(ROPE if base else NOPE for base in bases)
    return found | ({"position_types": positions} if NOPE in positions else {})


def _bases(config: Config, layers: int) -> list[float]:
    """The numbers of layer_rope_theta."""
    found = config.value(BASES)
    if not isinstance(found, list) or len(found) != layers or any(not _is_base(base) for base in found):
        raise AutoshardError(
            f"{BASES}={show(found)} of {config.name} must be a list of {layers} numbers, one a block: the base of its "
            "rotary positions, or 0 for none"
        )
    return [float(base) for base in found]


def _is_base(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _base(config: Config, bases: list[float], types: tuple[str, ...], word: str) -> float:
    """The base that blocks of a word of ATTENTION_TYPES have, where they turn; 0 where none does."""
    own = sorted({base for base, one in zip(bases, types, strict=True) if base and one == word})
    if len(own) > 1:
        raise AutoshardError(
            f"{BASES} of {config.name} has {show(own[0])} and {show(own[1])} in blocks of {word}, which is not "
            "supported; one base, or 0, is"
        )
    return own[0] if own else 0.0


def write(model: ModelSpec) -> dict[str, Any]:
    assert model.multipliers is not None, model.name
    config = (
        written_as_llama(model)
        | vars(model.multipliers)
        | {
            "attention_bias": model.attention_bias,
            "sliding_window": model.sliding_window or WINDOW,  # asked for in any case
            "layer_types": list(model.layer_types or one_kind(model)),
            BASES: [
                model.rope_of(layer)[0] if model.has_rope(layer) else 0 for layer in range(model.num_hidden_layers)
            ],
        }
    )
    if model.model_type == "granite_swa":
        return config | {"mlp_bias": model.mlp_bias}
    return (
        config
        | routers_loss_keys(model)
        | {
            "num_local_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
            "shared_intermediate_size": model.shared_expert_intermediate_size,
        }
    )
