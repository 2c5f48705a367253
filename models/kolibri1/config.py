"""The config.json of Kolibri 1."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config, one_kind
from autoshard.models.llama.config import Defaults, every_few, read_as_llama, turned_windows, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED
from autoshard.spec.router import CORRECTED_LOGITS, Router

ARCHITECTURES = {"kolibri1": "Kolibri1ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=4, head_dim=128)
UNSUPPORTED = (("attention_bias", True), ("output_router_logits", True))
WINDOW, PATTERN = 513, 5
"""Without the keys: every so many blocks there is one without a window, which has no positions."""
EXPERTS, CHOSEN, SHARED = 384, 6, 512
"""Without the keys; the last is the width of the expert that every token goes to."""


def read(config: Config, model_type: str) -> ModelSpec:
    if config.is_null("sliding_window"):
        raise AutoshardError(f"sliding_window=null of {config.name} is not supported; a number of tokens is")
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    # transformers 5 writes them as num_local_experts
    experts = "num_local_experts" if config.gives("num_local_experts") else "num_experts"
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        width="moe_intermediate_size",
        num_local_experts=config.integer(experts, EXPERTS, at_most=MOST_REPEATED),
        num_experts_per_tok=config.integer("num_experts_per_tok", CHOSEN, at_most=MOST_REPEATED),
        shared_expert_intermediate_size=config.integer("shared_expert_intermediate_size", SHARED),
        norm_topk_prob=config.switch("norm_topk_prob", False),
        router=Router("sigmoid", CORRECTED_LOGITS),
        **turned_windows(config, WINDOW, every_few(layers, PATTERN)),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model)
    config["moe_intermediate_size"] = config.pop("intermediate_size")
    return config | {
        "sliding_window": model.sliding_window or WINDOW,  # asked for in any case
        "layer_types": list(model.layer_types or one_kind(model)),
        "num_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        "norm_topk_prob": model.norm_topk_prob,
    }
