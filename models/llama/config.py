"""The config.json of models of the Llama form: Llama, Mistral, Qwen's dense ones, SmolLM3, Granite, CWM and Helium."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import (
    Config,
    head_dim,
    one_kind,
    rope,
    rope_keys,
    rope_parameters,
    shared_out,
    sizes,
    stretched,
)
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ATTENTION_TYPES, FULL_ATTENTION, MOST_REPEATED, NOPE, ROPE, SLIDING_ATTENTION
from autoshard.spec.multipliers import Multipliers

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "cwm": "CwmForCausalLM",
    "helium": "HeliumForCausalLM",
}


@dataclass(frozen=True)
class Defaults:
    """The values that transformers assumes if a config of a model_type does not give them."""

    norm_eps: float
    rope_theta: float
    num_key_value_heads: int | None = None
    sliding_window: int | None = None
    head_dim: int | None = None


DEFAULTS = {
    "llama": Defaults(norm_eps=1e-6, rope_theta=10_000.0),
    "mistral": Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=8, sliding_window=4096),
    "qwen2": Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=32, sliding_window=4096),
    "qwen3": Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=32, sliding_window=4096, head_dim=128),
    "smollm3": Defaults(norm_eps=1e-6, rope_theta=2_000_000.0, num_key_value_heads=4),
    "granite": Defaults(norm_eps=1e-6, rope_theta=10_000.0),
    "cwm": Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8, sliding_window=8192, head_dim=128),
    "helium": Defaults(norm_eps=1e-8, rope_theta=100_000.0, num_key_value_heads=20),
}
CWM_ROPE = {
    "rope_type": "llama3",
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Positions of CWM where a config does not say."""


def read(config: Config, model_type: str) -> ModelSpec:
    defaults = DEFAULTS[model_type]
    more: dict[str, Any]
    match model_type:
        case "llama" | "helium":
            if model_type == "helium":
                shared_out(config, "hidden_size", "num_attention_heads")  # its output projection is square
            more = {
                "attention_bias": config.value("attention_bias", False),
                "mlp_bias": config.value("mlp_bias", False),
                "sliding_window": None,
            }
        case "mistral":
            layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
            more = windows(config, defaults.sliding_window, (SLIDING_ATTENTION,) * layers)
        case "cwm":
            layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
            types = tuple(SLIDING_ATTENTION if layer % 4 else FULL_ATTENTION for layer in range(layers))
            theta, _ = rope(config, defaults.rope_theta)
            more = {"rope_theta": theta, "rope_scaling": stretched(config, config.rope(CWM_ROPE))}
            more["mlp_bias"] = config.value("mlp_bias", False)
            more |= windows(config, defaults.sliding_window, types)
        case "smollm3" | "granite":
            biases = ("attention_bias", "mlp_bias")
            more = {name: config.value(name, False) for name in biases}
            more |= smollm3_blocks(config) if model_type == "smollm3" else {"multipliers": multipliers(config)}
        case "qwen2":
            more = {"attention_bias": True, **qwen_windows(config, defaults.sliding_window)}
        case _:
            more = {
                "attention_bias": config.value("attention_bias", False),
                **qwen_windows(config, defaults.sliding_window),
            }
    return read_as_llama(config, model_type, defaults, **more)


def read_as_llama(
    config: Config,
    model_type: str,
    defaults: Defaults,
    width: str = "intermediate_size",
    eps: str = "rms_norm_eps",
    **more: Any,
) -> ModelSpec:
    """The model of a config of the Llama form. width: the key of the MLP's inner width. eps: that of what norms add to
    a variance. more: further fields of ModelSpec."""
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    shared = heads if config.is_null("num_key_value_heads") else defaults.num_key_value_heads
    if "rope_theta" not in more:
        more["rope_theta"], more["rope_scaling"] = rope(config, defaults.rope_theta)
    fields: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, "sliding_window": None, **more}
    fields.setdefault("num_attention_heads", heads)
    fields.setdefault("num_key_value_heads", config.value("num_key_value_heads", shared or heads))
    fields.setdefault("hidden_act", config.value("hidden_act", "silu"))
    fields.setdefault("tie_word_embeddings", config.value("tie_word_embeddings", False))
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=config.value(width),
        num_hidden_layers=config.value("num_hidden_layers"),
        head_dim=head_dim(config, defaults.head_dim),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        norm_eps=config.positive(eps, defaults.norm_eps),
        **fields,
    )


def qwen_windows(config: Config, default: int | None, types: tuple[str, ...] = ()) -> dict[str, Any]:
    """The sliding window of Qwen's models, and which blocks have it where not all have.

    There is one only if use_sliding_window says so, and then on the blocks from max_window_layers on, or where
    layer_types says so. default: the window without the key. types: the layer_types without the key, in place of these.
    """
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.value("use_sliding_window", False) is False:
        if config.gives("layer_types") and SLIDING_ATTENTION in config.words("layer_types", layers, ATTENTION_TYPES):
            # transformers has a window on such blocks of SmolLM3 all the same, and runs no other model with them
            raise AutoshardError(
                f"use_sliding_window=False of {config.name} is not supported with {SLIDING_ATTENTION} in layer_types; "
                "True is"
            )
        return {"sliding_window": None}
    if not types:
        first = config.integer("max_window_layers", 28, at_least=0)
        types = tuple(SLIDING_ATTENTION if layer >= first else FULL_ATTENTION for layer in range(layers))
    return windows(config, default, types)


def windows(config: Config, default: int | None, types: tuple[str, ...]) -> dict[str, Any]:
    """The sliding window, and which blocks have it where not all have: those of which layer_types says so. default:
    the window without the key. types: the layer_types without the key.
    """
    window = config.window(default)
    if config.gives("layer_types"):
        types = config.words("layer_types", len(types), ATTENTION_TYPES)
    if window is None or SLIDING_ATTENTION not in types:
        return {"sliding_window": None}
    return {"sliding_window": window, "layer_types": types if FULL_ATTENTION in types else ()}


def window_of_some(config: Config, default: int | None, types: tuple[str, ...]) -> Any:
    """The sliding window where some blocks have one by their layer_types, else None. default: as of `windows`.

    Raises AutoshardError where some have one and the config says null.
    """
    window = config.window(default)
    if SLIDING_ATTENTION not in types:
        return None
    if window is None:
        raise AutoshardError(
            f"sliding_window={show(None)} of {config.name} is not supported with {SLIDING_ATTENTION} blocks"
        )
    return window


def needed_windows(config: Config, default: int | None, types: tuple[str, ...]) -> dict[str, Any]:
    """The fields that `windows` finds, in families where a window of null beside sliding blocks is refused."""
    window_of_some(config, default, types)
    return windows(config, default, types)


def turned_windows(config: Config, default: int | None, types: tuple[str, ...]) -> dict[str, Any]:
    """The fields that `windows` finds, and those of positions in families whose blocks without a window have none."""
    if config.gives("layer_types"):
        types = config.words("layer_types", len(types), ATTENTION_TYPES)
    positions = tuple(ROPE if word == SLIDING_ATTENTION else NOPE for word in types)
    return windows(config, default, types) | ({"position_types": positions} if NOPE in positions else {})


def every_few(layers: int, pattern: int) -> tuple[str, ...]:
    """The layer_types of blocks of which every pattern-th one has no window."""
    return tuple(SLIDING_ATTENTION if (layer + 1) % pattern else FULL_ATTENTION for layer in range(layers))


def blocks_with_rope(config: Config) -> tuple[str, ...]:
    """The position_types of a config of which every no_rope_layer_interval-th block has no positions, or those with a 0
    in no_rope_layers."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    interval = config.integer("no_rope_layer_interval", 4)
    turned = config.value("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(layers)])
    if not isinstance(turned, list) or len(turned) != layers or any(flag not in (0, 1) for flag in turned):
        raise AutoshardError(
            f"no_rope_layers={show(turned)} of {config.name} must be a list of {layers} numbers, one a block: 1 with "
            "rotary positions, 0 without"
        )
    return tuple(ROPE if flag else NOPE for flag in turned)


def smollm3_blocks(config: Config) -> dict[str, Any]:
    """Which blocks of SmolLM3 have no positions. With a sliding window, these have it."""
    types = blocks_with_rope(config)
    windows = tuple(SLIDING_ATTENTION if word == NOPE else FULL_ATTENTION for word in types)
    tied = {"tie_word_embeddings": config.value("tie_word_embeddings", True)}
    found = qwen_windows(config, None, types=windows)
    return tied | found | ({"position_types": types} if NOPE in types else {})


def multipliers(config: Config) -> Multipliers:
    """The constants by which Granite scales embeddings, scores, residuals and logits. null scales scores as other
    families do: by 1 / sqrt(head_dim)."""
    usual = head_dim(config) ** -0.5
    return Multipliers(
        embedding_multiplier=config.positive("embedding_multiplier", 1.0),
        attention_multiplier=config.positive(
            "attention_multiplier", usual if config.is_null("attention_multiplier") else 1.0
        ),
        residual_multiplier=config.positive("residual_multiplier", 1.0),
        logits_scaling=config.positive("logits_scaling", 1.0),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    keys = written_as_llama(model)
    more: dict[str, Any]
    match model.model_type:
        case "llama" | "helium":
            more = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
        case "mistral":
            more = {"sliding_window": model.sliding_window}
            if model.layer_types:  # transformers then takes it for a ministral
                more["layer_types"] = list(model.layer_types)
        case "cwm":
            more = {
                "sliding_window": model.sliding_window or DEFAULTS["cwm"].sliding_window,  # asked for in any case
                "layer_types": list(model.layer_types or one_kind(model)),
                "mlp_bias": model.mlp_bias,
                **rope_parameters(model),
            }
        case "smollm3":
            types = model.position_types or (ROPE,) * model.num_hidden_layers
            more = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias, **qwen_window_keys(model)}
            more["no_rope_layers"] = [int(word == ROPE) for word in types]
        case "granite":
            assert model.multipliers is not None
            more = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias, **vars(model.multipliers)}
        case "qwen2":
            more = qwen_window_keys(model)
        case _:
            more = {"attention_bias": model.attention_bias, **qwen_window_keys(model)}
    return keys | more


def written_as_llama(model: ModelSpec, eps: str = "rms_norm_eps") -> dict[str, Any]:
    """The keys that all configs of the Llama form have. eps: as of `read_as_llama`."""
    heads = {"num_key_value_heads": model.num_key_value_heads, eps: model.norm_eps}
    return sizes(model) | heads | rope_keys(model)


def qwen_window_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys that `qwen_windows` reads."""
    has_window = model.sliding_window is not None
    config: dict[str, Any] = {"use_sliding_window": has_window, "sliding_window": model.sliding_window}
    if has_window:
        config["max_window_layers"] = 0
    if model.layer_types:
        config["layer_types"] = list(model.layer_types)
    return config
