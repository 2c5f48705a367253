"""Read Hugging Face's config.json as a ModelSpec, and write it back: what every family's config has in common.

An absent key gets the value that transformers gives it; an absent size is an error, but for Gemma 3, whose published
configs leave sizes out. The rest is in `<family>/config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.json_file import read_json
from autoshard.models.config_fields import Config
from autoshard.models.families import FAMILIES, config_of
from autoshard.models.nearest import MOST_NAMED, STRUCTURE, nearest_family, published_keys, unknown_keys
from autoshard.models.text_part import TEXT, check_form, other_parts, text_part
from autoshard.plugins.found import call
from autoshard.spec.dropout import Dropout
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MODEL_TYPES, TRACED

MAX_CONFIG_BYTES = 1_000_000
"""Published configs have 1 to 50 KB."""
NOT_CAUSAL = (("is_causal", False),)
"""What no family here has: attention that looks ahead."""
_OTHER_HEAD = re.compile(r"For(?!.*(CausalLM|Generation)$)[A-Z]\w*$")
"""The end of a class that predicts something else than the next token, such as LlamaForSequenceClassification."""
ATTENTION_DROPOUT = {"attention": ("attention_dropout", 0.0)}
"""Dropout -> (key of the config that has its rate, the rate that transformers takes without the key), of a family that
does not say its own."""


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
    config = _parsed(file)
    try:
        return from_config(config, name or "model")
    except AutoshardError as error:
        raise AutoshardError(f"model config {file}: {error}") from None


def _parsed(file: Path) -> object:
    return read_json(file, "model config", MAX_CONFIG_BYTES, has_infinity=True)


def from_config(config: object, name: str) -> ModelSpec:
    """The model that a parsed config.json describes; the text model where it describes one that sees or hears as well.
    name: of the model, which the config does not say.

    Raises AutoshardError naming the field, its value and what would work.
    """
    if not isinstance(config, Mapping):
        raise AutoshardError(f"the config of {name} must be an object with a model_type, not {show(config)}")
    check_form(config, name)
    whole, config = config, text_part(config)
    model_type = config.get("model_type")
    if model_type is None and config.keys() >= {"inputs", "strategy"}:
        raise AutoshardError("this is a plan, not the config of a model; autoshard replan plans again from one")
    if model_type is None:
        raise AutoshardError(f"model_type is missing from the config of {name}; supported: {', '.join(MODEL_TYPES)}")
    if not isinstance(model_type, str) or model_type not in FAMILIES or model_type == TRACED:
        raise AutoshardError(
            f"model_type={show(model_type)} of {name} is not supported; {_nearest(config)}; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    family = config_of(FAMILIES[model_type])
    for key, value in (*NOT_CAUSAL, *getattr(family, "UNSUPPORTED", ())):
        if config.get(key) is value:
            raise AutoshardError(f"{key}={show(value)} of {name} is not supported; {show(not value)} is")
    language_models = getattr(family, "ARCHITECTURES", {})  # a plug-in may have none
    _check_head(whole, language_models.get(model_type, "a class ForCausalLM"), name)
    quantized = config.get("quantization_config")
    known = getattr(family, "QUANTIZATIONS", ())
    if quantized is not None and not (isinstance(quantized, Mapping) and quantized.get("quant_method") in known):
        inner = "" if whole is config or "quantization_config" in whole else f" in {TEXT}"
        instead = "delete the key for the unquantised model, or give the name of a built-in one"
        raise AutoshardError(f"quantization_config{inner} of {name} is not supported: {instead}")
    fields = Config(config, name)
    plugin = FAMILIES.plugin(model_type)
    model = family.read(fields, model_type) if plugin is None else call(plugin, family.read, (fields, model_type))
    if not isinstance(model, ModelSpec):
        raise AutoshardError(f"family {FAMILIES.said(model_type)} reads {name} as {show(model)}, which is no ModelSpec")
    for key in sorted(STRUCTURE & fields.unread()):
        others = [other for other, keys in published_keys().items() if key in keys]
        if model_type in others:
            raise AutoshardError(
                f"{key}={show(config[key])} of {name} is not read, as another key goes before it; leave one of them out"
            )
        instead = f"; {' or '.join(others)} has it" if others else ""
        raise AutoshardError(
            f"{key}={show(config[key])} of {name} is not a key of model_type={model_type}, which would be another "
            f"model without it{instead}"
        )
    return model


def _check_head(config: Mapping[str, Any], language_model: str, name: str) -> None:
    """Raise AutoshardError where a config names classes that all have another head than a language model's, such as a
    reward model's, or none: they have other weights and another loss. A class that nobody knows passes.

    language_model: transformers' class of the family, such as LlamaForCausalLM.
    """
    named = config.get("architectures")
    classes = [named] if isinstance(named, str) else named
    if not isinstance(classes, list) or not classes or not all(isinstance(one, str) for one in classes):
        return
    without_head = f"{language_model.removesuffix('ForCausalLM').removesuffix('LMHeadModel')}Model"
    if all(one == without_head or _OTHER_HEAD.search(one) for one in classes):
        raise AutoshardError(
            f"architectures={', '.join(map(show, classes))} of {name} is not supported; {language_model} is, which has "
            "a language model's head on the same blocks"
        )


def _nearest(config: Mapping[str, Any]) -> str:
    """The known family that is nearest to a config of an unknown one, and what that does not know, in words."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        return f"nor is its text_config, of model_type={show(inner.get('model_type'))}"
    nearest = nearest_family(config)
    keys = unknown_keys(config, nearest)
    more = "" if len(keys) <= MOST_NAMED else f" and {len(keys) - MOST_NAMED} more"
    named = ", ".join(show(key)[1:-1] for key in keys[:MOST_NAMED])
    unknown = f", which does not know {named}{more}" if keys else ""
    return f"the nearest that is: {nearest}{unknown}; a module of your own is traced: FILE.py:CLASS"


def to_config(model: ModelSpec) -> dict[str, Any]:
    """A config.json as a dict, with every key that `read_config` looks at for the model's model_type; transformers
    builds the model from it."""
    family = config_of(model.family)
    common = {
        "architectures": [family.ARCHITECTURES[model.model_type]],
        "model_type": model.model_type,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_word_embeddings,
        "pad_token_id": None,  # some classes of transformers have one of their own, beyond a small vocabulary
    }
    if model.multi_token_prediction is not None:
        common["num_nextn_predict_layers"] = model.multi_token_prediction.mtp_num_layers
    own: dict[str, Any] = family.write(model)
    return common | own


def read_dropout(path: str | Path) -> Dropout:
    """The dropout with which transformers trains the model of a config.json; `read_config` leaves it out.

    Raises AutoshardError as `read_config`, and for a rate that is none.
    """
    model = read_config(path)
    fields = Config(text_part(_whole(path)), model.name)
    rates = getattr(config_of(model.family), "DROPOUT", ATTENTION_DROPOUT)
    return Dropout(**{field: fields.value(key, default) for field, (key, default) in rates.items()})


def read_other_parts(path: str | Path) -> tuple[str, ...]:
    """Keys of what a config.json describes beside the text model that `read_config` reads, such as vision_config.

    Raises AutoshardError as `read_config`.
    """
    read_config(path)
    return other_parts(_whole(path))


def _whole(path: str | Path) -> Mapping[str, Any]:
    """The config of a file or folder that `read_config` has read."""
    path = Path(path)
    config = _parsed(path / "config.json" if path.is_dir() else path)
    assert isinstance(config, Mapping)
    return config
