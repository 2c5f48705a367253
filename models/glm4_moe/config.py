"""The config.json of GLM-4.5 and GLM-4.5-Air, of dots.llm1, and of Solar Open."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, one_kind, partial_rope
from autoshard.models.deepseek.config import corrected_router, expert_keys, experts
from autoshard.models.llama.config import Defaults, read_as_llama, windows, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, MOST_REPEATED, SLIDING_ATTENTION
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"glm4_moe": "Glm4MoeForCausalLM", "dots1": "Dots1ForCausalLM", "solar_open": "SolarOpenForCausalLM"}
DEFAULTS = {
    "glm4_moe": Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=8),
    "dots1": Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=32),
    "solar_open": Defaults(norm_eps=1e-5, rope_theta=1_000_000.0, num_key_value_heads=8, head_dim=128),
}
PARTIAL_ROTARY_FACTOR = 0.5
WINDOW, WINDOW_LAYERS = 4096, 62
"""Of dots.llm1 without the keys: it has windows on the blocks from the latter on."""


def read(config: Config, model_type: str) -> ModelSpec:
    return read_as_llama(
        config,
        model_type,
        DEFAULTS[model_type],
        width="moe_intermediate_size",
        attention_bias=config.value("attention_bias", False),
        **READERS[model_type](config),
    )


def _glm(config: Config) -> dict[str, Any]:
    return {
        **partial_rope(config, DEFAULTS["glm4_moe"].rope_theta, PARTIAL_ROTARY_FACTOR),
        "use_qk_norm": config.value("use_qk_norm", False),
        **corrected_router(config, n_group=1, topk_group=1, scaling=1.0),
        **experts(config, first_dense=1, shared=1),
    }


def _dots(config: Config) -> dict[str, Any]:
    """The fields that dots.llm1 has besides; its published config calls the sigmoid that a bias corrects noaux_tc."""
    if (scoring := config.value("scoring_func", CORRECTED)) not in ("sigmoid", CORRECTED):
        raise AutoshardError(f"scoring_func={show(scoring)} of {config.name} is not supported; {CORRECTED} is")
    layers, first = (
        config.integer("num_hidden_layers", at_most=MOST_REPEATED),
        config.integer("max_window_layers", WINDOW_LAYERS, at_least=0),
    )
    types = tuple(SLIDING_ATTENTION if layer >= first else FULL_ATTENTION for layer in range(layers))
    router = Router(
        "sigmoid",
        CORRECTED,
        n_group=config.integer("n_group", 1),
        topk_group=config.integer("topk_group", 1),
        routed_scaling_factor=config.positive("routed_scaling_factor", 1.0),
    )
    normalized = config.switch("norm_topk_prob", False)
    found = experts(config, first_dense=0, shared=0)
    return {"router": router, "norm_topk_prob": normalized, **found, **windows(config, WINDOW, types)}


def _solar(config: Config) -> dict[str, Any]:
    """The fields that Solar Open has besides: experts in every block."""
    config.only("first_k_dense_replace", 0)
    config.only("use_qk_norm", False)
    return {
        **partial_rope(config, DEFAULTS["solar_open"].rope_theta, 1.0),
        **corrected_router(config, n_group=1, topk_group=1, scaling=1.0),
        **experts(config, first_dense=0, shared=1),
    }


READERS = {"glm4_moe": _glm, "dots1": _dots, "solar_open": _solar}


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model) | expert_keys(model) | {"attention_bias": model.attention_bias}
    if model.model_type == "dots1":
        types = list(model.layer_types or one_kind(model))
        return config | {"sliding_window": model.sliding_window, "layer_types": types}
    config["partial_rotary_factor"] = model.partial_rotary_factor
    return config if model.model_type == "solar_open" else config | {"use_qk_norm": model.use_qk_norm}
