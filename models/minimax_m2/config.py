"""The config.json of MiniMax-M2."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"minimax_m2": "MiniMaxM2ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=5_000_000.0, num_key_value_heads=8, head_dim=128)
UNSUPPORTED = (
    *(("attention_bias", True), ("use_qk_norm", False), ("use_routing_bias", False), ("output_router_logits", True)),
)
ALONE: dict[str, Any] = {
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "router_jitter_noise": 0.0,
}
"""Key -> its only value here, also without the key."""
FULL = 1
"""The word of attn_type_list for attention; 0 is linear attention, which MiniMax-M1 has."""


def read(config: Config, model_type: str) -> ModelSpec:
    for key, known in ALONE.items():
        config.only(key, known)
    if (window := config.window(None)) is not None:
        raise AutoshardError(f"sliding_window={show(window)} of {config.name} is not supported; null is")
    kinds = config.value("attn_type_list", [FULL])
    if not isinstance(kinds, list) or any(kind != FULL for kind in kinds):
        raise AutoshardError(
            f"attn_type_list={show(kinds)} of {config.name} is not supported; a list of {FULL} alone is: attention in "
            "every block"
        )
    width = config.integer("head_dim", DEFAULTS.head_dim)
    turned = config.integer("rotary_dim", width)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **partial_rope(config, DEFAULTS.rope_theta, turned / width),
        num_local_experts=config.value("num_local_experts", 256),
        num_experts_per_tok=config.value("num_experts_per_tok", 8),
        router=Router("sigmoid", CORRECTED),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return (
        written_as_llama(model)
        | ALONE
        | {
            "rotary_dim": model.rotary_dim,
            "num_local_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
            "use_qk_norm": True,
            "use_routing_bias": True,
            "output_router_logits": False,
        }
    )
