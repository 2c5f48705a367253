"""The config.json of models of the Llama form: Llama, Mistral, and the dense ones of Qwen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoshard.models.config_fields import Config, head_dim, rope, rope_keys, sizes
from autoshard.spec.model import FULL_ATTENTION, LAYER_TYPES, MOST_REPEATED, SLIDING_ATTENTION, ModelSpec

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
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
}


def read(config: Config, model_type: str) -> ModelSpec:
    defaults = DEFAULTS[model_type]
    match model_type:
        case "llama":
            more = {
                "attention_bias": config.value("attention_bias", False),
                "mlp_bias": config.value("mlp_bias", False),
                "sliding_window": None,
            }
        case "mistral":
            more = {"sliding_window": config.window(defaults.sliding_window)}
        case "qwen2":
            more = {"attention_bias": True, **qwen_windows(config, defaults.sliding_window)}
        case _:
            more = {
                "attention_bias": config.value("attention_bias", False),
                **qwen_windows(config, defaults.sliding_window),
            }
    return read_as_llama(config, model_type, defaults, **more)


def read_as_llama(
    config: Config, model_type: str, defaults: Defaults, width: str = "intermediate_size", **more: Any
) -> ModelSpec:
    """The model of a config of the Llama form. width: the key of the MLP's inner width. more: further fields of
    ModelSpec."""
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    if "rope_theta" not in more:
        more["rope_theta"], more["rope_scaling"] = rope(config, defaults.rope_theta)
    fields: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, "sliding_window": None, **more}
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=config.value(width),
        num_hidden_layers=config.value("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.value("num_key_value_heads", defaults.num_key_value_heads or heads),
        head_dim=head_dim(config, "hidden_size", "num_attention_heads", defaults.head_dim),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        hidden_act=config.value("hidden_act", "silu"),
        norm_eps=config.positive("rms_norm_eps", defaults.norm_eps),
        tie_word_embeddings=config.value("tie_word_embeddings", False),
        **fields,
    )


def qwen_windows(config: Config, default: int | None, first: int | None = None) -> dict[str, Any]:
    """The sliding window of Qwen's models, and which blocks have it where not all have.

    There is one only if use_sliding_window says so, and then on the blocks from max_window_layers on, or where
    layer_types says so. default: the window without the key. first: the first block with a window, whatever the config
    says.
    """
    if config.value("use_sliding_window", False) is False:
        return {"sliding_window": None}
    window, layers = config.window(default), config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, LAYER_TYPES)
    else:
        first = config.integer("max_window_layers", 28, at_least=0) if first is None else first
        types = tuple(SLIDING_ATTENTION if layer >= first else FULL_ATTENTION for layer in range(layers))
    if window is None or SLIDING_ATTENTION not in types:
        return {"sliding_window": None}
    return {"sliding_window": window, "layer_types": types if FULL_ATTENTION in types else ()}


def write(model: ModelSpec) -> dict[str, Any]:
    more: dict[str, Any]
    match model.model_type:
        case "llama":
            more = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
        case "mistral":
            more = {"sliding_window": model.sliding_window}
        case "qwen2":
            more = qwen_window_keys(model)
        case _:
            more = {"attention_bias": model.attention_bias, **qwen_window_keys(model)}
    return written_as_llama(model) | more


def written_as_llama(model: ModelSpec) -> dict[str, Any]:
    """The keys that all configs of the Llama form have."""
    heads = {"num_key_value_heads": model.num_key_value_heads, "rms_norm_eps": model.norm_eps}
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
