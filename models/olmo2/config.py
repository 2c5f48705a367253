"""The config.json of OLMo 2 and 3."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, one_kind, ropes_of_kinds
from autoshard.models.llama.config import Defaults, read_as_llama, windows, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, MOST_REPEATED, SLIDING_ATTENTION

ARCHITECTURES = {"olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
THETA, WINDOW, PATTERN = 500_000.0, 4096, 4
"""Of OLMo 3 without the keys: every so many blocks there is one without a window."""


def read(config: Config, model_type: str) -> ModelSpec:
    bias = config.value("attention_bias", False)
    more = {} if model_type == "olmo2" else _kinds(config)
    return read_as_llama(config, model_type, DEFAULTS, attention_bias=bias, **more)


def _kinds(config: Config) -> dict[str, Any]:
    """Which blocks of OLMo 3 have a window, and positions of both kinds: those of blocks with a window are never
    stretched. A rope_theta beside them is that of both, though transformers 5 takes THETA for blocks with a window."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = tuple(SLIDING_ATTENTION if (layer + 1) % PATTERN else FULL_ATTENTION for layer in range(layers))
    theta, scaling, local = ropes_of_kinds(config, THETA)
    differ = {"rope_local_base_freq": local} if scaling is not None or local != theta else {}
    return {"rope_theta": theta, "rope_scaling": scaling, **differ, **windows(config, WINDOW, types)}


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model) | {"attention_bias": model.attention_bias}
    if model.model_type == "olmo2":
        return config
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
    local = {"rope_type": "default", "rope_theta": model.rope_local_base_freq or theta}
    wide = {**(scaling or {"rope_type": "default"}), "rope_theta": theta}
    return config | {
        "sliding_window": model.sliding_window or WINDOW,  # transformers asks for one even where no block has it
        "layer_types": list(model.layer_types or one_kind(model)),
        "rope_parameters": {FULL_ATTENTION: wide, SLIDING_ATTENTION: local},
    }
