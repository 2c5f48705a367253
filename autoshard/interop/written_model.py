"""Find or make the model that another framework's file describes: a built-in one, or one made of the file's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.registry import builtin_models, load_model
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FAMILIES, SHARED, TRACED
from autoshard.spec.rope import RopeScaling

UNKNOWN = object()
"""A property that a model does not have, or that says nothing about its graph."""
SIZES_OF_TRACED = ("hidden_size", "num_hidden_layers")
TOKENIZERS = {
    **dict.fromkeys(("llama4", "llama-4"), 202_048),
    **dict.fromkeys(("llama3", "llama-3"), 128_256),
    "llama": 32_000,
    "gpt2": 50_257,
}
"""Part of a tokenizer's name -> tokens of its vocabulary; the first that is in there counts."""

GPT: dict[str, Any] = {
    "normalization": "layernorm",
    "activation": "gelu",
    "positions": "learned_absolute",
    "block": "pre_ln",
    "bias": "all",
    "norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "normalizes_heads": False,
}
"""Values that Megatron's GPT takes if arguments do not give them."""
GRAPHS = {
    "has_dense_blocks": ("blocks without experts", "experts in each block"),
    "has_windows": ("windows", "no windows"),
    "has_unit_offset": ("norms with weights around zero", "norms with weights around one"),
}
"""Properties that are true or false and that no flag says as such: what either means. A key for one has its value."""
SAME_PRICE = ("has_unit_offset",)
"""Properties that make another model and take the same time and memory."""


@dataclass(frozen=True)
class WrittenModel:
    """The properties (`property_of`) of a model that another framework's file states.

    said: (the file's key, its value). assumed: values that the format takes if the file is silent. whole: whether both
    together are a model, except for a vocabulary, rather than a few sizes of one that another file describes.
    model_types: those that it can be; empty for any. config: the other file, as the file names it. plain: whether the
    framework runs it as Llama 2's graph, whatever window and width of heads it has. other_graph: a key of the file for
    a graph that no model is made of here; empty for none. notes: which of `assumed` are guesses. named: the file's own
    name of a model that is not known by it; empty for none.
    """

    said: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    model_types: tuple[str, ...] = ()
    config: str | None = None
    plain: bool = False
    other_graph: str = ""
    notes: tuple[str, ...] = ()
    named: str = ""

    @property
    def wanted(self) -> dict[str, Any]:
        """Every property with its value, said or assumed.

        If a whole model says nothing of them, its heads share the hidden size and each query head has a key-value head.
        """
        properties = {**self.assumed, **{name: value for name, (_, value) in self.said.items()}}
        hidden, heads = properties.get("hidden_size"), properties.get("num_attention_heads")
        if self.whole and hidden and heads:
            shared = {} if hidden % heads else {"head_dim": hidden // heads}
            return {"num_key_value_heads": heads, **shared, **properties}
        return properties


def property_of(model: ModelSpec, name: str) -> Any:
    """The model's value of a property; UNKNOWN if its graph has no such thing.

    A property is a field of ModelSpec, or a word for what several fields say together:
    normalization: rmsnorm | layernorm. activation: swiglu | gelu, of any precision. positions: rope | learned_absolute.
    bias: all | none | qkv | attention, of linear layers. block: pre_ln | parallel. has_latent_attention,
    has_dense_blocks (in a mixture), has_windows, has_unit_offset (of norms): true | false. The widths of latent
    attention have their names.
    """
    if model.model_type == TRACED and name not in SIZES_OF_TRACED:
        return UNKNOWN
    match name:
        case "normalization":
            return model.normalization
        case "activation":
            if model.clamped_gate is not None:
                return "clamped_swiglu"
            gelu = "geglu" if model.family.has_gate else "gelu"
            return {"silu": "swiglu", "relu2": "squared_relu"}.get(model.hidden_act, gelu)
        case "positions":
            return "learned_absolute" if model.rope_theta is None else "rope"
        case "max_position_embeddings":
            return model.max_position_embeddings if model.rope_theta is None else UNKNOWN
        case "rope_theta" | "partial_rotary_factor" | "rope_scaling" if model.rope_theta is None:
            return UNKNOWN
        case "num_experts_per_tok" | "norm_topk_prob" if not model.is_moe:
            return UNKNOWN
        case "q_lora_rank" | "kv_lora_rank" | "qk_rope_head_dim" | "v_head_dim":
            return UNKNOWN if model.latent_attention is None else getattr(model.latent_attention, name)
        case "qk_nope_head_dim":
            latent = model.latent_attention
            return UNKNOWN if latent is None else model.head_dim - latent.qk_rope_head_dim
        case "has_latent_attention":
            return model.latent_attention is not None
        case "has_dense_blocks":
            return model.dense_intermediate_size > 0 if model.is_moe else UNKNOWN
        case "has_windows":
            return model.sliding_window is not None or model.chunked_attention is not None
        case "has_unit_offset":
            return model.family.has_unit_offset
        case "normalizes_heads" if model.chunked_attention is not None:
            return model.chunked_attention.use_qk_norm
        case "bias":
            if model.mlp_bias or not model.attention_bias:
                return "all" if model.mlp_bias else "none"
            return "attention" if model.output_projection_bias else "qkv"
        case "block":
            return "parallel" if model.use_parallel_residual else "pre_ln"
    return getattr(model, name)


def check_same_model(file: str, written: WrittenModel, model: ModelSpec) -> tuple[str, ...]:
    """Notes on what the file says otherwise than the model and that has no price: how rope is stretched, what norms
    multiply by.

    file: its name. The number of blocks is not compared: a file may train fewer of them. Raises AutoshardError, naming
    the file's key, for the first other property that the model has otherwise.
    """
    notes: tuple[str, ...] = ()
    for name, (key, value) in written.said.items():
        models_own = property_of(model, name)
        if _is_stretched_otherwise(value, models_own):
            own = f"{model.name} does it otherwise, with factor {models_own.factor:g}"
            both = "the plan has the latter, and both take the same time"
            notes += (f"{key} stretches rope with factor {value.factor:g}; {own}: {both}",)
            continue
        if name in SAME_PRICE:
            if models_own not in (UNKNOWN, value):
                own = GRAPHS[name][not models_own]
                notes += (f"{stated(written, name)}; the plan has {model.name}'s {own}: both take the same time",)
            continue
        if name != "num_hidden_layers" and not _is_as_said(models_own, value):
            own = GRAPHS[name][not models_own] if name in GRAPHS else shown(models_own)
            raise AutoshardError(f"{file} has {stated(written, name)}, but {model.name} has {own}: another model")
    return notes


def stated(written: WrittenModel, name: str) -> str:
    """A property that the file says, in its words."""
    key, value = written.said[name]
    return f"{key} ({GRAPHS[name][not value]})" if name in GRAPHS else f"{key}={shown(value)}"


def plain_llama(model: ModelSpec) -> tuple[ModelSpec, tuple[str, ...]]:
    """(the model without a window and with heads that share the hidden size, notes on what that changes), as NxD
    Training's hf_llama runs it [NxDT models/hf_models/modeling_llama.py]. A model of another family stays as it is.
    """
    if model.model_type not in ("llama", "mistral"):
        return model, (f"{model.name}: priced as {model.model_type}; NxD Training's hf_llama runs any as llama",)
    notes: tuple[str, ...] = ()
    if (window := model.sliding_window) is not None:
        notes += (f"{model.name} without its window of {window:,} tokens, as NxD Training's hf_llama trains it",)
    width = model.hidden_size // model.num_attention_heads
    if width != model.head_dim:
        notes += (f"heads of {width} values, as NxD Training's hf_llama has, not {model.name}'s {model.head_dim}",)
    return (replace(model, sliding_window=None, head_dim=width) if notes else model), notes


def _is_as_said(own: object, said: object) -> bool:
    """Whether a model's property is what a file says, as far as anybody can say it: Megatron's base of positions, for
    one, is a whole number, and StarCoder2's is not."""
    return own is UNKNOWN or own == said or (isinstance(own, float) and not own.is_integer() and round(own) == said)


def _is_stretched_otherwise(one: object, other: object) -> bool:
    """Whether both stretch rope in the same manner, with other numbers."""
    if not isinstance(one, RopeScaling) or not isinstance(other, RopeScaling):
        return False
    return one != other and one.rope_type == other.rope_type


def shown(value: object) -> str:
    """A value in an error: a word without quotes, anything else as `show` gives it, on one line."""
    return value if isinstance(value, str) and value.isidentifier() and len(value) < 60 else show(value)


def models_with(written: WrittenModel) -> tuple[ModelSpec, ...]:
    """The built-in models that have every wanted property but perhaps another number of blocks; none if the file says
    nothing, or has a graph that no model is made of.

    Of several, those with the wanted number of blocks, if there are any; then those with the wanted number of
    positions. Models that are the same but for their names count once.
    """
    return _with_all(written.wanted, written.model_types) if written.said and not written.other_graph else ()


def models_as_said(written: WrittenModel) -> tuple[ModelSpec, ...]:
    """The same of the properties that the file states, whatever it is silent about."""
    said = {name: value for name, (_, value) in written.said.items()}
    return _with_all(said, written.model_types) if said.keys() >= {"hidden_size", "num_hidden_layers"} else ()


def _with_all(wanted: Mapping[str, Any], model_types: tuple[str, ...]) -> tuple[ModelSpec, ...]:
    compared = {name: value for name, value in wanted.items() if name != "num_hidden_layers"}
    models = [
        model
        for model in map(load_model, builtin_models())
        if (not model_types or model.model_type in model_types)
        and all(_is_as_said(property_of(model, name), value) for name, value in compared.items())
    ]
    for name in ("num_hidden_layers", "max_position_embeddings"):
        models = [model for model in models if getattr(model, name) == wanted.get(name)] or models
    return tuple({replace(model, name="same"): model for model in reversed(models)}.values())[::-1]


_Form = dict[str, tuple[str, ...]]


def _form(model_type: str, own: _Form) -> _Form:
    """The words of `_family` that a graph stands for: those of its family's traits, and `own` where not Llama's."""
    family = FAMILIES[model_type]
    return {
        "positions": ("learned_absolute" if family.learns_positions else "rope",),
        "normalization": (family.normalization,),
        "activation": ("swiglu" if family.has_gate else "gelu",),
        "bias": ("none",),
        "block": ("pre_ln",),
        "experts": ("experts" if family.experts else "no experts",),
        "shared": ("a shared expert" if SHARED in family.experts else "no shared expert",),
        "heads": ("normalized heads" if family.qk_norm else "heads as they are",),
        "window": ("no window",),
        "rotary": ("whole heads turned",),
        **own,
    }


_GPT: _Form = {"bias": ("all",), "groups": ("a key for each query",)}
_OWN: dict[str, _Form] = {
    "llama": {"bias": ("none", "all")},
    "mistral": {"window": ("a window",)},
    "mixtral": {"window": ("no window", "a window")},
    "qwen2": {"bias": ("qkv",)},
    "qwen3": {},
    "qwen2_moe": {"bias": ("none", "qkv")},
    "qwen3_moe": {},
    "gpt2": _GPT,
    "gpt_neox": {**_GPT, "rotary": ("whole heads turned", "parts of heads turned")},
}
FORMS = {model_type: _form(model_type, own) for model_type, own in _OWN.items()}
"""model_type -> the words that its graph stands for, of families that models are made of."""


def built_model(name: str, written: WrittenModel) -> ModelSpec:
    """A model made of the wanted properties, of the family whose graph has exactly these.

    Raises AutoshardError where no family has them, or a size is missing or impossible.
    """
    wanted = written.wanted
    missing = [size for size in _NEEDED if size not in wanted]
    if missing:
        raise AutoshardError(f"it does not say its model's {', '.join(missing)}; --model CONFIG.json does")
    rope = wanted["positions"] == "rope"
    if "head_dim" not in wanted:
        _check_divides(written, "num_attention_heads", "hidden_size")
    if "num_key_value_heads" in written.said:
        _check_divides(written, "num_key_value_heads", "num_attention_heads")
    model_type = _family(wanted)
    return ModelSpec(
        name=name,
        model_type=model_type,
        hidden_act="silu" if wanted["activation"] == "swiglu" else "gelu",
        rope_theta=wanted["rope_theta"] if rope else None,
        rope_scaling=wanted.get("rope_scaling") if rope else None,
        partial_rotary_factor=wanted["partial_rotary_factor"] if rope else 1.0,
        attention_bias=wanted["bias"] != "none",
        mlp_bias=wanted["bias"] == "all",
        num_experts_per_tok=wanted["num_experts_per_tok"] if wanted["num_local_experts"] else 0,
        **{size: wanted[size] for size in _AS_THEY_ARE},
    )


def _check_divides(written: WrittenModel, divisor: str, size: str) -> None:
    (key, value), (other, whole) = written.said[divisor], written.said[size]
    if whole % value:
        raise AutoshardError(f"{key}={value} must divide {other}={whole}")


_NEEDED = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    "max_position_embeddings",
)
_AS_THEY_ARE = (
    *_NEEDED,
    *("num_key_value_heads", "head_dim"),
    *("norm_eps", "tie_word_embeddings", "sliding_window"),
    *("num_local_experts", "shared_expert_intermediate_size", "norm_topk_prob"),
)


def _family(wanted: Mapping[str, Any]) -> str:
    own_keys = wanted["num_key_value_heads"] == wanted["num_attention_heads"]
    traits = {
        **{name: shown(wanted[name]) for name in ("positions", "normalization", "activation", "bias", "block")},
        "experts": "experts" if wanted["num_local_experts"] else "no experts",
        "shared": "a shared expert" if wanted["shared_expert_intermediate_size"] else "no shared expert",
        "heads": "normalized heads" if wanted["normalizes_heads"] else "heads as they are",
        "window": "no window" if wanted["sliding_window"] is None else "a window",
        "groups": "a key for each query" if own_keys else "grouped queries",
        "rotary": "whole heads turned" if wanted["partial_rotary_factor"] == 1 else "parts of heads turned",
    }
    wrong = {
        model_type: [name for name, allowed in form.items() if traits[name] not in allowed]
        for model_type, form in FORMS.items()
    }
    nearest = min(wrong, key=lambda model_type: len(wrong[model_type]))
    if not wrong[nearest]:
        return nearest
    against = ", ".join(
        f"{_trait(name, ' or '.join(FORMS[nearest][name]))}, not {_trait(name, traits[name])}"
        for name in wrong[nearest]
    )
    raise AutoshardError(f"no family of models here has its graph; the nearest, {nearest}, has {against}")


def _trait(name: str, value: str) -> str:
    return f"{name}={value}" if name in ("bias", "block") else value


def guessed_vocabulary(key: str, tokenizer: object) -> tuple[int | None, tuple[str, ...]]:
    """(number of tokens, a note that it is guessed) of the vocabulary of a tokenizer with this name; (None, ()) if
    unknown.

    key: what the file calls it.
    """
    name = str(tokenizer or "").rstrip("/").rpartition("/")[2].lower()
    size = next((size for part, size in TOKENIZERS.items() if part in name), None)
    if size is None:
        return None, ()
    return size, (f"vocabulary of {size:,} tokens, guessed from {key}={show(tokenizer)}: the file does not say it",)
