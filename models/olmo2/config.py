"""The config.json of OLMo 2 and 3, FlexOlmo and EXAONE 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, one_kind, rope_parameters_of_kinds, ropes_of_kinds
from autoshard.models.llama.config import Defaults, every_few, read_as_llama, turned_windows, windows, written_as_llama
from autoshard.models.olmoe.config import mixture, mixture_keys
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED

ARCHITECTURES = {
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "flex_olmo": "FlexOlmoForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
}
OLMO = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
DEFAULTS = {
    "olmo2": OLMO,
    "olmo3": OLMO,
    "flex_olmo": Defaults(norm_eps=1e-6, rope_theta=500_000.0),
    "exaone4": replace(OLMO, num_key_value_heads=32),
}
THETA, WINDOW, PATTERN = 500_000.0, 4096, 4
"""Without the keys: every so many blocks there is one without a window; of OLMo 3 the base of its positions."""


def read(config: Config, model_type: str) -> ModelSpec:
    more: dict[str, Any] = {}
    if model_type == "exaone4":
        config.only("attention_bias", False)
        more = exaone_kinds(config)
    else:
        more = {"attention_bias": config.value("attention_bias", False)}
        more |= _kinds(config) if model_type == "olmo3" else {}
        more |= mixture(config, 7, 5) if model_type == "flex_olmo" else {}
    return read_as_llama(config, model_type, DEFAULTS[model_type], **more)


def exaone_kinds(config: Config) -> dict[str, Any]:
    """Which blocks of EXAONE have a window; where it has windows at all, the others have no positions."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.window(WINDOW) is None:
        return {"sliding_window": None}
    pattern = config.value("sliding_window_pattern", PATTERN)
    if isinstance(pattern, str):
        if not config.gives("layer_types"):
            raise AutoshardError(
                f"sliding_window_pattern={show(pattern)} of {config.name} needs layer_types beside it, a word for each "
                "block"
            )
        pattern = PATTERN  # layer_types goes before it
    else:
        pattern = config.integer("sliding_window_pattern", PATTERN)
    return turned_windows(config, WINDOW, every_few(layers, pattern))


def _kinds(config: Config) -> dict[str, Any]:
    """Which blocks of OLMo 3 have a window, and positions of both kinds: those of blocks with a window are never
    stretched. A rope_theta beside them is that of both, though transformers 5 takes THETA for blocks with a window."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = every_few(layers, PATTERN)
    theta, scaling, local = ropes_of_kinds(config, THETA)
    differ = {"rope_local_base_freq": local} if scaling is not None or local != theta else {}
    return {"rope_theta": theta, "rope_scaling": scaling, **differ, **windows(config, WINDOW, types)}


def exaone_kind_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys that `exaone_kinds` reads. Without positions there are windows, if on no block."""
    window = model.sliding_window or (WINDOW if model.position_types else None)
    return {"sliding_window": window, "layer_types": list(model.layer_types or one_kind(model))}


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model)
    if model.model_type == "exaone4":
        return config | exaone_kind_keys(model)
    types = list(model.layer_types or one_kind(model))
    config["attention_bias"] = model.attention_bias
    if model.model_type == "flex_olmo":
        return config | mixture_keys(model)
    if model.model_type == "olmo2":
        return config
    del config["rope_theta"], config["rope_scaling"]
    return config | {
        "sliding_window": model.sliding_window or WINDOW,  # transformers asks for one even where no block has it
        "layer_types": types,
        **rope_parameters_of_kinds(model),
    }
