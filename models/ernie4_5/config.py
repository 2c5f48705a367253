"""The config.json of ERNIE 4.5 and of its mixtures."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import DENSE, MOST_REPEATED, SPARSE
from autoshard.spec.router import CORRECTED, Router

ARCHITECTURES = {"ernie4_5": "Ernie4_5ForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM"}
DEFAULTS = {
    "ernie4_5": Defaults(norm_eps=1e-5, rope_theta=500_000.0, num_key_value_heads=2, head_dim=128),
    "ernie4_5_moe": Defaults(norm_eps=1e-5, rope_theta=500_000.0, num_key_value_heads=4),
}
DROPOUT: dict[str, tuple[str, float]] = {}
"""transformers drops nothing of it."""


def read(config: Config, model_type: str) -> ModelSpec:
    tied = config.value("tie_word_embeddings", True)
    if model_type == "ernie4_5_moe":
        return read_as_llama(
            config,
            model_type,
            DEFAULTS[model_type],
            width="moe_intermediate_size",
            tie_word_embeddings=tied,
            router=Router("softmax", CORRECTED),
            **_experts(config),
        )
    bias = config.value("use_bias", False)
    more = {"attention_bias": bias, "mlp_bias": bias, "tie_word_embeddings": tied}
    return read_as_llama(config, model_type, DEFAULTS[model_type], **more)


def _experts(config: Config) -> dict[str, Any]:
    """Routed and shared experts, and which blocks have them: every moe_layer_interval-th one of those from
    moe_layer_start_index to moe_layer_end_index, where -1 is the last."""
    for key, known in (("use_bias", False), ("moe_use_aux_free", True), ("output_router_logits", False)):
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    first, last = (
        config.integer(f"moe_layer_{key}_index", default, at_least=-1) for key, default in (("start", 1), ("end", -1))
    )
    last, interval = layers - 1 if last == -1 else last, config.integer("moe_layer_interval", 1)
    types = tuple(
        SPARSE if first <= layer <= last and (layer + 1) % interval == 0 else DENSE for layer in range(layers)
    )
    dense = {"mlp_layer_types": types, "dense_intermediate_size": config.value("intermediate_size")}
    shared = config.integer("moe_num_shared_experts", 2, at_least=0)
    return {
        "num_local_experts": config.value("moe_num_experts", 64),
        "num_experts_per_tok": config.value("moe_k", 6),
        "shared_expert_intermediate_size": shared * config.integer("moe_intermediate_size"),
        **(dense if DENSE in types else {}),
    }


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model) | {"use_bias": model.attention_bias}
    if model.model_type == "ernie4_5":
        return config
    return (
        config
        | _places(model)
        | {
            "intermediate_size": model.dense_intermediate_size or model.intermediate_size,
            "moe_intermediate_size": model.intermediate_size,
            "moe_num_experts": model.num_local_experts,
            "moe_k": model.num_experts_per_tok,
            "moe_num_shared_experts": model.shared_expert_intermediate_size // model.intermediate_size,
            "output_router_logits": False,
        }
    )


def _places(model: ModelSpec) -> dict[str, int]:
    """The keys that say which blocks have experts."""
    layers = range(model.num_hidden_layers)
    found = [layer for layer in layers if model.has_experts(layer)]
    first, last = (found[0], found[-1]) if found else (model.num_hidden_layers, model.num_hidden_layers)
    for interval in range(1, model.num_hidden_layers + 1):
        if found == [layer for layer in layers if first <= layer <= last and (layer + 1) % interval == 0]:
            return {"moe_layer_start_index": first, "moe_layer_end_index": last, "moe_layer_interval": interval}
    raise AutoshardError(f"mlp_layer_types of {model.name} has no form in a config of model_type=ernie4_5_moe")
