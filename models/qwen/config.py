"""The config.json of the mixtures of Qwen 2 and 3, and of Mellum 2."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, one_kind, rope_parameters_of_kinds, ropes_of_kinds
from autoshard.models.llama.config import (
    Defaults,
    needed_windows,
    qwen_window_keys,
    read_as_llama,
    written_as_llama,
)
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ATTENTION_TYPES, DENSE, FULL_ATTENTION, MLP_LAYER_TYPES, MOST_REPEATED, SPARSE

ARCHITECTURES = {
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mellum": "MellumForCausalLM",
}
DEFAULTS = {
    "qwen2_moe": Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=16, sliding_window=4096),
    "qwen3_moe": Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=4, sliding_window=4096),
    "mellum": Defaults(norm_eps=1e-6, rope_theta=500_000.0, num_key_value_heads=4, sliding_window=1024, head_dim=128),
}
LOCAL_THETA = 10_000.0
"""Of Mellum's blocks with a window, without the key."""


def read(config: Config, model_type: str) -> ModelSpec:
    defaults = DEFAULTS[model_type]
    if model_type == "qwen2_moe":
        if config.value("use_sliding_window", False) is not False:
            raise AutoshardError(f"use_sliding_window=True of {config.name} is not supported for qwen2_moe; False is")
        more = {
            "attention_bias": config.value("qkv_bias", True),
            "shared_expert_intermediate_size": config.value("shared_expert_intermediate_size"),
        }
    elif model_type == "mellum":
        more = {"attention_bias": config.value("attention_bias", False), **_kinds(config)}
    else:
        # all blocks have the window: transformers reads neither layer_types nor max_window_layers here
        has_window = config.value("use_sliding_window", False) is not False
        more = {
            "attention_bias": config.value("attention_bias", False),
            "sliding_window": config.window(defaults.sliding_window) if has_window else None,
        }
    more |= mixture(config, norm_topk_prob=model_type == "mellum")
    return read_as_llama(config, model_type, defaults, width="moe_intermediate_size", **more)


def _kinds(config: Config) -> dict[str, Any]:
    """Which blocks of Mellum have a window, and the positions of both kinds; without the keys none has one."""
    layers, defaults = config.integer("num_hidden_layers", at_most=MOST_REPEATED), DEFAULTS["mellum"]
    types = (FULL_ATTENTION,) * layers
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, ATTENTION_TYPES)
    found = needed_windows(config, defaults.sliding_window, types)
    theta, scaling, local = ropes_of_kinds(config, defaults.rope_theta, LOCAL_THETA)
    own = {} if found["sliding_window"] is None else {"rope_local_base_freq": local}
    return {"rope_theta": theta, "rope_scaling": scaling, **own, **found}


def mixture(config: Config, norm_topk_prob: bool) -> dict[str, Any]:
    """The experts and which blocks have them. norm_topk_prob: without the key."""
    # transformers 5 writes Qwen 3's as num_local_experts
    experts = "num_local_experts" if config.gives("num_local_experts") else "num_experts"
    return {
        "num_local_experts": config.value(experts),
        "num_experts_per_tok": config.value("num_experts_per_tok"),
        "norm_topk_prob": config.value("norm_topk_prob", norm_topk_prob),
        **routers_loss(config),
        **_dense_blocks(config),
    }


def _dense_blocks(config: Config) -> dict[str, Any]:
    """Which blocks have an MLP in place of experts: those of mlp_only_layers, and all but every decoder_sparse_step-th
    one; mlp_layer_types, of Mellum, goes before both."""
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    sparse_step, dense = config.integer("decoder_sparse_step", 1), config.value("mlp_only_layers", [])
    if not isinstance(dense, list) or any(type(layer) is not int or not 0 <= layer < layers for layer in dense):
        raise AutoshardError(
            f"mlp_only_layers={show(dense)} of {config.name} must be a list of blocks from 0 to {layers - 1}"
        )
    types = tuple(DENSE if layer in dense or (layer + 1) % sparse_step else SPARSE for layer in range(layers))
    if config.gives("mlp_layer_types"):
        types = config.words("mlp_layer_types", layers, MLP_LAYER_TYPES)
    if DENSE not in types:
        return {}
    return {"mlp_layer_types": types, "dense_intermediate_size": config.value("intermediate_size")}


def write(model: ModelSpec) -> dict[str, Any]:
    if model.model_type == "mellum":
        return _written_mellum(model)
    config = mixture_keys(model) | qwen_window_keys(model)
    if model.model_type == "qwen2_moe":
        config |= {
            "qkv_bias": model.attention_bias,
            "shared_expert_intermediate_size": model.shared_expert_intermediate_size,
        }
    else:
        config["attention_bias"] = model.attention_bias
    return config


def _written_mellum(model: ModelSpec) -> dict[str, Any]:
    config = mixture_keys(model)
    for key in ("rope_theta", "rope_scaling", "decoder_sparse_step", "mlp_only_layers"):
        del config[key]
    return config | {
        "attention_bias": model.attention_bias,
        "sliding_window": model.sliding_window or DEFAULTS["mellum"].sliding_window,
        "layer_types": list(model.layer_types or one_kind(model)),
        "mlp_layer_types": list(model.mlp_layer_types) or [SPARSE] * model.num_hidden_layers,
        **rope_parameters_of_kinds(model),
    }


def mixture_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys of the Llama form and those that `mixture` reads."""
    config = written_as_llama(model) | routers_loss_keys(model)
    config |= {
        "moe_intermediate_size": model.intermediate_size,
        "num_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "norm_topk_prob": model.norm_topk_prob,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, kind in enumerate(model.mlp_layer_types) if kind == DENSE],
    }
    if model.dense_intermediate_size:
        config["intermediate_size"] = model.dense_intermediate_size
    return config
