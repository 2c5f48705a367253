"""The config.json of AFMoE: Trinity Nano, Mini and Large."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, one_kind
from autoshard.models.deepseek.config import corrected_router, expert_keys, experts
from autoshard.models.llama.config import Defaults, every_few, read_as_llama, turned_windows, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED

ARCHITECTURES = {"afmoe": "AfmoeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0, head_dim=128)
WINDOW, PATTERN = 1024, 4
"""Without the keys: every so many blocks there is one without a window, which has no positions."""
NAMED = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "route_scale",
    "first_k_dense_replace": "num_dense_layers",
    "norm_topk_prob": "route_norm",
    "scoring_func": "score_func",
}
ALONE: dict[str, Any] = {
    "score_func": "sigmoid",
    "route_norm": True,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_groups": 1,
    "num_limited_groups": 1,
}
"""Keys of published configs that transformers does not read, and what it builds."""
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True))


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ALONE.items():
        config.only(key, known)
    if config.value("mup_enabled", False) is not True:
        raise AutoshardError(
            f"mup_enabled={show(config.value('mup_enabled', False))} of {config.name} is not supported; True is: "
            "embeddings are multiplied by the root of hidden_size"
        )
    if config.is_null("sliding_window"):
        raise AutoshardError(f"sliding_window=null of {config.name} is not supported; a number of tokens is")
    config.integer("num_shared_experts", 2)  # transformers has one tensor at least
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        **turned_windows(config, WINDOW, every_few(layers, config.integer("global_attn_every_n_layers", PATTERN))),
        **corrected_router(config, n_group=1, topk_group=1, scaling=1.0, named=NAMED),
        **experts(config, first_dense=1, shared=2, named=NAMED),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return (
        written_as_llama(model)
        | expert_keys(model, NAMED)
        | {
            "mup_enabled": True,
            "sliding_window": model.sliding_window or WINDOW,  # asked for in any case
            "layer_types": list(model.layer_types or one_kind(model)),
        }
    )
