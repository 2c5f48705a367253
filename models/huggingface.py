"""Read Hugging Face's config.json as a ModelSpec. An absent key gets the value that transformers gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import LARGEST, check_integer, check_positive, is_finite, show
from autoshard.files.json_file import read_json
from autoshard.spec.dropout import Dropout
from autoshard.spec.model import MOE_MODEL_TYPES, MOST_REPEATED, ROPE_TYPES, ModelSpec, RopeScaling

MAX_CONFIG_BYTES = 1_000_000
"""Published configs have 1 to 50 KB."""


@dataclass(frozen=True)
class _Defaults:
    """The values that transformers assumes if a config of a model_type does not give them."""

    norm_eps: float
    rope_theta: float
    num_key_value_heads: int | None = None
    sliding_window: int | None = None
    head_dim: int | None = None


_DEFAULTS = {
    "llama": _Defaults(norm_eps=1e-6, rope_theta=10_000.0),
    "mistral": _Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=8, sliding_window=4096),
    "mixtral": _Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8),
    "qwen2": _Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=32, sliding_window=4096),
    "qwen2_moe": _Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=16, sliding_window=4096),
    "qwen3": _Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=32, sliding_window=4096, head_dim=128),
    "qwen3_moe": _Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=4, sliding_window=4096),
}
_QWEN = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
SUPPORTED = (*_DEFAULTS, "gpt2", "gpt_neox")

_UNSUPPORTED_VALUES: dict[str, tuple[tuple[str, object], ...]] = {
    "gpt2": (
        ("add_cross_attention", True),
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False),
    ),
}
"""Keys that turn the model into another one than the graph describes, with the value that does."""


def read_config(path: str | Path) -> ModelSpec:
    """The model in a config.json, or in a model's directory that has one.

    Its name is the file's, or the directory's where the file is called config.json.
    Raises AutoshardError, naming the file and the field, for anything that is not a config of a supported model_type.
    """
    path = Path(path)
    try:
        file = path / "config.json" if path.is_dir() else path
        name = file.resolve().parent.name if file.name == "config.json" else file.stem
    except (OSError, ValueError) as error:
        raise AutoshardError(f"model config {show(str(path))} cannot be read: {error}") from None
    config = read_json(file, "model config", MAX_CONFIG_BYTES)
    try:
        return from_config(config, name or "model")
    except AutoshardError as error:
        raise AutoshardError(f"model config {file}: {error}") from None


def from_config(config: object, name: str) -> ModelSpec:
    """The model that a parsed config.json describes. name: of the model, which the config does not say.

    Raises AutoshardError naming the field, its value and what would work.
    """
    if not isinstance(config, Mapping):
        raise AutoshardError(f"the config of {name} must be an object with a model_type, not {show(config)}")
    model_type = config.get("model_type")
    if model_type not in SUPPORTED:
        raise AutoshardError(
            f"model_type={show(model_type)} of {name} is not supported; supported: {', '.join(SUPPORTED)}"
        )
    for key, value in _UNSUPPORTED_VALUES.get(model_type, ()):
        if config.get(key) is value:
            raise AutoshardError(f"{key}={show(value)} of {name} is not supported; {show(not value)} is")
    if config.get("quantization_config") is not None:
        raise AutoshardError(
            f"quantization_config of {name} is not supported: give the config of the unquantised model"
        )
    fields = _Config(config, name)
    match model_type:
        case "gpt2":
            return _gpt2(fields)
        case "gpt_neox":
            return _gpt_neox(fields)
        case _:
            return _llama(fields, model_type)


_DROPOUT: dict[str, dict[str, tuple[str, float]]] = {
    "gpt2": {"embedding": ("embd_pdrop", 0.1), "residual": ("resid_pdrop", 0.1), "attention": ("attn_pdrop", 0.1)},
    "gpt_neox": {
        "embedding": ("hidden_dropout", 0.0),
        "residual": ("hidden_dropout", 0.0),
        "attention": ("attention_dropout", 0.0),
    },
}
"""By model_type: dropout -> (key of the config that has its rate, the rate that transformers takes without the key)."""
_ATTENTION_DROPOUT = {"attention": ("attention_dropout", 0.0)}
"""The same for every other model_type."""


def read_dropout(path: str | Path) -> Dropout:
    """The dropout with which transformers trains the model of a config.json; `read_config` leaves it out.

    Raises AutoshardError as `read_config`, and for a rate that is none.
    """
    name = read_config(path).name
    path = Path(path)
    config = read_json(path / "config.json" if path.is_dir() else path, "model config", MAX_CONFIG_BYTES)
    assert isinstance(config, Mapping)
    fields = _Config(config, name)
    rates = _DROPOUT.get(config["model_type"], _ATTENTION_DROPOUT)
    return Dropout(**{field: fields.value(key, default) for field, (key, default) in rates.items()})


class _Config:
    """Look-ups in one config. null counts as absent; a key that is absent and has no default is an error."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._config = config

    def gives(self, key: str) -> bool:
        return self._config.get(key) is not None

    def value(self, key: str, default: object = None) -> Any:
        """The value of a key, unchecked: for keys that ModelSpec checks under the same name."""
        value = self._config.get(key)
        if value is not None:
            return value
        if default is None:
            raise AutoshardError(f"{key} is missing from the config of {self.name}")
        return default

    def integer(self, key: str, default: int | None = None, at_most: int = LARGEST) -> int:
        value = self.value(key, default)
        check_integer(self.name, key, value, at_most=at_most)
        return int(value)

    def window(self, default: int | None) -> Any:
        """The sliding_window: null means none, and only an absent key the default."""
        return self._config.get("sliding_window", default)

    def positive(self, key: str, default: float) -> float:
        value = self.value(key, default)
        check_positive(self.name, key, value)
        return float(value)

    def rope(self) -> Mapping[str, Any]:
        """The mapping rope_parameters (transformers 5) or rope_scaling (before); empty if there is neither."""
        for key in ("rope_parameters", "rope_scaling"):
            rope = self._config.get(key)
            if rope is not None:
                if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
                    raise AutoshardError(f"{key}={show(rope)} of {self.name} must be null or one object for all layers")
                return rope
        return {}


def _llama(config: _Config, model_type: str) -> ModelSpec:
    """The model of a config of Llama, Mistral, Mixtral or Qwen: they have one form and different defaults."""
    defaults = _DEFAULTS[model_type]
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    rope_theta, rope_scaling = _rope(config, defaults.rope_theta)
    is_llama = model_type == "llama"
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=config.value(
            "moe_intermediate_size" if model_type in ("qwen2_moe", "qwen3_moe") else "intermediate_size"
        ),
        num_hidden_layers=config.value("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.value("num_key_value_heads", defaults.num_key_value_heads or heads),
        head_dim=_head_dim(config, "hidden_size", "num_attention_heads", defaults.head_dim),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        hidden_act=config.value("hidden_act", "silu"),
        norm_eps=config.positive("rms_norm_eps", defaults.norm_eps),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=config.value("tie_word_embeddings", False),
        sliding_window=None if is_llama else _window(config, model_type, defaults.sliding_window),
        attention_bias=_attention_bias(config, model_type),
        mlp_bias=is_llama and config.value("mlp_bias", False),
        **_experts(config, model_type),
    )


def _attention_bias(config: _Config, model_type: str) -> Any:
    match model_type:
        case "llama" | "qwen3" | "qwen3_moe":
            return config.value("attention_bias", False)
        case "qwen2":
            return True
        case "qwen2_moe":
            return config.value("qkv_bias", True)
    return False


def _window(config: _Config, model_type: str, default: int | None) -> Any:
    """The sliding window.

    Qwen has one only if use_sliding_window says so, and then on the layers from max_window_layers on.
    """
    if model_type not in _QWEN:
        return config.window(default)
    if config.value("use_sliding_window", False) is False:
        return None
    if model_type == "qwen2_moe":
        raise AutoshardError(f"use_sliding_window=True of {config.name} is not supported for qwen2_moe; False is")
    window, first = config.window(default), 0 if model_type == "qwen3_moe" else config.value("max_window_layers", 28)
    if window is None or (isinstance(first, int) and first >= config.integer("num_hidden_layers")):
        return None
    if first != 0:
        raise AutoshardError(
            f"max_window_layers={show(first)} of {config.name} is not supported with use_sliding_window=True: "
            "all layers must be alike; 0 is"
        )
    return window


def _experts(config: _Config, model_type: str) -> dict[str, Any]:
    """Fields of ModelSpec that only a mixture of experts has; every layer must have one."""
    if model_type not in MOE_MODEL_TYPES:
        return {}
    # transformers adds the routers' loss where it gives their logits
    routes = {"router_aux_loss_coef": config.value("router_aux_loss_coef", 0.001)}
    routes = routes if config.value("output_router_logits", False) else {}
    if model_type == "mixtral":
        return {name: config.value(name) for name in ("num_local_experts", "num_experts_per_tok")} | routes
    sparse_step, dense = config.value("decoder_sparse_step", 1), config.value("mlp_only_layers", [])
    if sparse_step != 1:
        raise AutoshardError(
            f"decoder_sparse_step={show(sparse_step)} of {config.name} is not supported: "
            "every layer must have experts; 1 is"
        )
    if dense != []:
        raise AutoshardError(
            f"mlp_only_layers={show(dense)} of {config.name} is not supported: every layer must have experts; [] is"
        )
    shared = model_type == "qwen2_moe"
    return {
        # transformers 5 writes Qwen 3's as num_local_experts
        "num_local_experts": config.value("num_local_experts" if config.gives("num_local_experts") else "num_experts"),
        "num_experts_per_tok": config.value("num_experts_per_tok"),
        "shared_expert_intermediate_size": config.value("shared_expert_intermediate_size") if shared else 0,
        "norm_topk_prob": config.value("norm_topk_prob", False),
    } | routes


def _gpt2(config: _Config) -> ModelSpec:
    """The model of a config of GPT-2 or GPT-3: biases everywhere, learned positions, the head tied to the embedding."""
    hidden_size = config.integer("n_embd")
    heads = config.integer("n_head", at_most=MOST_REPEATED)
    return ModelSpec(
        name=config.name,
        model_type="gpt2",
        hidden_size=hidden_size,
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        num_hidden_layers=config.integer("n_layer", at_most=MOST_REPEATED),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=_head_dim(config, "n_embd", "n_head"),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.integer("n_positions"),
        hidden_act=config.value("activation_function", "gelu_new"),
        norm_eps=config.positive("layer_norm_epsilon", 1e-5),
        rope_theta=None,
        rope_scaling=None,
        tie_word_embeddings=config.value("tie_word_embeddings", True),
        sliding_window=None,
        attention_bias=True,
        mlp_bias=True,
    )


def _gpt_neox(config: _Config) -> ModelSpec:
    """The model of a config of GPT-NeoX or Pythia: LayerNorm and biases everywhere, rotary positions on part of each
    head.
    """
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    rope_theta, rope_scaling = _rope(config, config.positive("rotary_emb_base", 10_000.0), partial_is_known=True)
    attention_bias = config.value("attention_bias", True)
    if attention_bias is not True:
        raise AutoshardError(f"attention_bias={show(attention_bias)} of {config.name} is not supported; True is")
    return ModelSpec(
        name=config.name,
        model_type="gpt_neox",
        hidden_size=config.value("hidden_size"),
        intermediate_size=config.value("intermediate_size"),
        num_hidden_layers=config.value("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=_head_dim(config, "hidden_size", "num_attention_heads"),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        hidden_act=config.value("hidden_act", "gelu"),
        norm_eps=config.positive("layer_norm_eps", 1e-5),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=config.value("tie_word_embeddings", False),
        sliding_window=None,
        attention_bias=True,
        mlp_bias=True,
        partial_rotary_factor=_neox_rotary_part(config),
        use_parallel_residual=config.value("use_parallel_residual", True),
    )


def _neox_rotary_part(config: _Config) -> float:
    """The rotary share of each head: rotary_pct, or the key under rope_parameters that transformers 5 writes."""
    part = config.rope().get("partial_rotary_factor")
    part = config.value("rotary_pct", 0.25) if part is None else part
    check_positive(config.name, "rotary_pct", part)
    return float(part)


def _head_dim(config: _Config, size_key: str, heads_key: str, default: int | None = None) -> int:
    """The head_dim that the config gives, else the family's default, else the hidden size shared out over the heads."""
    size, heads = config.integer(size_key), config.integer(heads_key, at_most=MOST_REPEATED)
    if config.gives("head_dim"):
        return config.integer("head_dim")
    if default is not None:
        return default
    if size % heads:
        fitting = ", ".join([str(count) for count in range(1, 2 * heads) if size % count == 0][-4:])
        raise AutoshardError(
            f"{heads_key}={heads} must divide {size_key}={size} of {config.name}; near it fit: {fitting}"
        )
    return size // heads


def _rope(config: _Config, default_theta: float, partial_is_known: bool = False) -> tuple[float, RopeScaling | None]:
    """(rope_theta, how it is stretched); both have moved between versions of transformers."""
    rope = config.rope()
    theta = rope.get("rope_theta")
    if theta is None:
        theta = config.value("rope_theta", default_theta)
    check_positive(config.name, "rope_theta", theta)
    partial = rope.get("partial_rotary_factor")
    if partial is None:
        partial = config.value("partial_rotary_factor", 1.0)
    if partial != 1 and not partial_is_known:
        raise AutoshardError(f"partial_rotary_factor={show(partial)} of {config.name} is not supported; 1.0 is")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type == "default":
        return float(theta), None
    if rope_type not in ROPE_TYPES:
        supported = ", ".join(("default", *ROPE_TYPES))
        raise AutoshardError(f"rope_type={show(rope_type)} of {config.name} is not supported; supported: {supported}")
    if rope_type == "linear":
        return float(theta), RopeScaling("linear", _as_float(rope.get("factor")))
    return float(theta), RopeScaling(
        rope_type,
        factor=_as_float(rope.get("factor")),
        low_freq_factor=_as_float(rope.get("low_freq_factor")),
        high_freq_factor=_as_float(rope.get("high_freq_factor")),
        original_max_position_embeddings=rope.get("original_max_position_embeddings"),
    )


def _as_float(value: Any) -> Any:
    """The value as a float, since configs write 8 and 8.0 for the same factor; RopeScaling refuses what is no
    number.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and is_finite(value) else value
