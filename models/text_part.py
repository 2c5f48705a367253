"""The text model in the config of one that sees or hears as well, and configs that go by another name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, shared_out
from autoshard.models.families import FAMILIES
from autoshard.spec.model_types import TRACED

TEXT = "text_config"
THINKER = "thinker_config"
"""Key of what reads, sees and hears, in the config of a model that speaks as well."""
TIED, QUANTIZED = "tie_word_embeddings", "quantization_config"
"""Keys that the whole may say of its text model."""
LINEAR = "linear_attn_config"
"""Key of a text model, no part of its own."""


class Form(NamedTuple):
    """A model_type that is read as another one.

    model_type: the one as which it is read. sees: whether it is the text model of one that sees. Text has one position
    where images have three, and transformers then computes the same. defaults: what a key means without it, where that
    is not what it means to the other. named: keys that the other has by another name -> that name; they go before those
    of that name. alike: flags of which all must say the same. only: keys that have one value, whatever a config says.
    shares_out: whether heads are as wide as the hidden size shared out over them, whatever a config says.
    """

    model_type: str
    sees: bool = True
    defaults: Mapping[str, Any] = {}
    named: Mapping[str, str] = {}
    alike: tuple[str, ...] = ()
    only: Mapping[str, Any] = {}
    shares_out: bool = False

    def read(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """A config of this form as one of the other."""
        kept = {key: value for key, value in config.items() if key not in self.named}
        said = {name: config[key] for key, name in self.named.items() if config.get(key) is not None}
        return {**self.defaults, **kept, **said, "model_type": self.model_type}


_QWEN2 = Form("qwen2", defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6})
_UNIFIED = {"hidden_size_per_layer_input": 0, "sliding_window": 1024, "max_position_embeddings": 262_144}
_NO_WINDOW = {"use_sliding_window": False}
OF_THE_SAME_FORM: Mapping[str, Form] = {
    "ministral": Form("mistral", sees=False),  # transformers takes a mistral with layer_types for one
    "iquestcoder": Form(  # transformers builds a Llama of it
        "llama", sees=False, defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    ),
    "internlm3": Form(  # of this too, and refuses other biases in attention than in the MLP
        "llama",
        sees=False,
        defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5},
        named={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
        alike=("attention_bias", "mlp_bias"),
    ),
    "qwen2_vl": _QWEN2,  # published ones have the keys of the text model and of the whole in one object
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3_vl_text": Form("qwen3", defaults={"rope_theta": 5e5}, only=_NO_WINDOW),
    "qwen3_vl_moe_text": Form("qwen3_moe", defaults={"rope_theta": 5e5, "norm_topk_prob": True}, only=_NO_WINDOW),
    "qwen2_5_omni_text": Form(
        "qwen2", defaults={"num_key_value_heads": 4, "rope_theta": 1e6, "sliding_window": 32_768}
    ),
    "qwen3_omni_moe_text": Form("qwen3_moe", defaults={"rope_theta": 1e6, "norm_topk_prob": True}, only=_NO_WINDOW),
    "glm4v_text": Form(  # it has a key for neither biases nor the width of heads
        "glm4",
        defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "head_dim": None},
        only={"attention_bias": True},
        shares_out=True,
    ),
    "glm4v_moe_text": Form("glm4_moe", defaults={"attention_bias": True}),
    "gemma4_unified_text": Form("gemma4_text", defaults=_UNIFIED),
    "granite4_vision_text": Form("granite"),
    "glm5_next": Form("glm5_next_text"),  # whose keys a config of the whole may have in one object
}
"""By the model_type of a config: how it is read. Those that see were held against transformers' classes."""


_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14_336, "max_position_embeddings": 131_072},
    "qwen2": {
        **_LLAMA,
        "intermediate_size": 22_016,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
    },
}
"""Sizes in transformers by model_type: the text_config of a published LLaVA leaves out those that are its own too."""


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text model alone, with the model_type as which it is read. A config of no such model, and one
    whose text model is not known, comes back as it is."""
    config = _inner(config)
    form = _form(config)
    return config if form is None else form.read(config)


def check_form(config: Mapping[str, Any], name: str) -> None:
    """Raises AutoshardError where a config that goes by another name has flags that must be alike and are not, or a key
    with another value than the only one. name: of the model."""
    inner = _inner(config)
    form = _form(inner)
    if form is None:
        return
    for key, known in form.only.items():
        if inner.get(key) not in (None, known):
            raise AutoshardError(f"{key}={show(inner[key])} of {name} is not supported; {show(known)} is")
    if form.shares_out:
        shared_out(Config(inner, name), "hidden_size", "num_attention_heads")
    read = form.read(inner)
    own = {other: key for key, other in form.named.items() if inner.get(key) is not None}
    for one, other in pairwise(form.alike):
        values = [read.get(key) or False for key in (one, other)]
        if values[0] != values[1]:
            said, beside = (
                f"{own.get(key, key)}={show(value)}" for key, value in zip((one, other), values, strict=True)
            )
            raise AutoshardError(f"{said} of {name} is not supported with {beside}; both alike are")


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the text model alone, with the model_type that it has there."""
    thinker = _thinker(config)
    text = thinker.get(TEXT)
    if isinstance(text, Mapping) and not _is_family(config):
        if not _is_family(text) and _form(text) is None:
            return config
        sizes = SIZES.get(text["model_type"], {})
        return {**sizes, **text, **_said_beside(thinker, text)}
    return config


def _thinker(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the part that reads, sees and hears: the whole config's, but for a model that speaks as well, whose
    part has an object of its own. Its tables are tied where that object says so itself."""
    thinker = config.get(THINKER)
    if not isinstance(thinker, Mapping):
        return config
    said = {QUANTIZED: config[QUANTIZED]} if config.get(QUANTIZED) is not None else {}
    return {TIED: False, **thinker, **said}


def _said_beside(whole: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a whole config says of its text model, which go before those of the text_config. Tied tables do not
    where the text_config says that they are not: transformers' classes say True of most wholes and False of most text
    models, and tables stay untied where a checkpoint has both."""
    said = {key: whole[key] for key in (TIED, QUANTIZED) if whole.get(key) is not None}
    return {
        key: value for key, value in said.items() if not (key == TIED and value is True and text.get(TIED) is False)
    }


def is_part(config: Mapping[str, Any]) -> bool:
    """Whether the text model is a part of what a config describes, or was taken out of such a one."""
    form = _form(config)
    return text_part(config).get("model_type") != config.get("model_type") if form is None else form.sees


def other_parts(config: object) -> tuple[str, ...]:
    """Keys of the parts beside the text model, in the config's order; none where a config describes that alone, and of
    what is no config."""
    if not isinstance(config, Mapping) or not is_part(config):
        return ()
    said = {**_thinker(config), **config}
    parts = (key for key, value in said.items() if isinstance(value, Mapping) and key.endswith("_config"))
    return tuple(key for key in parts if key not in (TEXT, THINKER, QUANTIZED, LINEAR))


def _is_family(config: Mapping[str, Any]) -> bool:
    """Whether a family reads the config's model_type as it is."""
    model_type = config.get("model_type")
    return isinstance(model_type, str) and model_type in FAMILIES and model_type != TRACED


def _form(config: Mapping[str, Any]) -> Form | None:
    """The form of which a config is by another name; None where it has a name of its own."""
    model_type = config.get("model_type")
    return OF_THE_SAME_FORM.get(model_type) if isinstance(model_type, str) else None
