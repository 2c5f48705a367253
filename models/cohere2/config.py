"""The config.json of Cohere: Command R, Command R+ and Aya 23; and of Cohere 2: Command R7B, Command A and A+."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, show
from autoshard.models.config_fields import Config, one_kind, rope_parameters, shared_out
from autoshard.models.deepseek.config import kind_keys
from autoshard.models.llama.config import Defaults, every_few, needed_windows, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    ATTENTION_TYPES,
    DENSE,
    MLP_LAYER_TYPES,
    MOST_REPEATED,
    NOPE,
    ROPE,
    SLIDING_ATTENTION,
    SPARSE,
)
from autoshard.spec.router import GREEDY, Router

ARCHITECTURES = {
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "cohere2_moe": "Cohere2MoeForCausalLM",
}
DEFAULTS = {
    "cohere": Defaults(norm_eps=1e-5, rope_theta=500_000.0),
    "cohere2": Defaults(norm_eps=1e-5, rope_theta=10_000.0),
    "cohere2_moe": Defaults(norm_eps=1e-5, rope_theta=10_000.0, head_dim=128),
}
WINDOW, PATTERN, LOGIT_SCALE = 4096, 4, 0.0625
"""Without the keys: every so many blocks there is one without a window."""
ONLY = {
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
    "use_qk_norm": False,
    "layer_norm_bias": False,
}
"""Keys of published configs of Cohere 2 that transformers does not read, and what it builds."""
SUM, AVERAGE = "sum", "average"
PREFIX_PATTERN = "prefix_dense_sliding_window_pattern"
"""The pattern of windows among the first blocks, which have no experts; 1 gives positions to all without experts."""


def read(config: Config, model_type: str) -> ModelSpec:
    if model_type == "cohere":
        return _scaled(config, model_type, use_qk_norm=config.value("use_qk_norm", False))
    for key, known in ONLY.items():
        config.only(key, known)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    every = config.integer("sliding_window_pattern", PATTERN)
    if model_type == "cohere2":
        shared_out(config, "hidden_size", "num_attention_heads")  # checks head_dim
        return _read(config, model_type, every_few(layers, every))
    if (scaling := config.value("rope_scaling", {})) != {}:
        raise AutoshardError(
            f"rope_scaling={show(scaling)} of {config.name} is not supported: transformers leaves it aside in "
            f"{model_type}; rope_parameters is"
        )
    first = config.integer("first_k_dense_replace", 0, at_least=0, at_most=layers)
    prefix = config.integer(PREFIX_PATTERN, 1)
    mlps = (DENSE,) * first + (SPARSE,) * (layers - first)
    if config.gives("mlp_layer_types"):
        mlps = config.words("mlp_layer_types", layers, MLP_LAYER_TYPES)
    types = every_few(first, prefix) + every_few(layers - first, every)
    return _read(config, model_type, types, mlps if prefix == 1 else (), **_experts(config, mlps))


def _read(
    config: Config, model_type: str, types: tuple[str, ...], turned: tuple[str, ...] = (), **more: Any
) -> ModelSpec:
    """The model whose blocks with a window have positions, and the others none. types: the layer_types without the key.
    turned: mlp_layer_types, where all blocks without experts have positions. more: further fields of ModelSpec."""
    if config.gives("layer_types"):
        types = config.words("layer_types", len(types), ATTENTION_TYPES)
    dense = [word == DENSE for word in turned] or [False] * len(types)
    positions = tuple(
        ROPE if word == SLIDING_ATTENTION or turns else NOPE for word, turns in zip(types, dense, strict=True)
    )
    has_rms_norm = model_type == "cohere2_moe" and config.gives("rms_norm_eps")
    return _scaled(
        config,
        model_type,
        eps="rms_norm_eps" if has_rms_norm else "layer_norm_eps",
        use_rms_norm=has_rms_norm,
        position_types=positions if NOPE in positions else (),
        **more,
        **needed_windows(config, WINDOW, types),
    )


def _scaled(config: Config, model_type: str, eps: str = "layer_norm_eps", **more: Any) -> ModelSpec:
    """The model with what configs of both generations say. eps, more: as of `read_as_llama`."""
    return read_as_llama(
        config,
        model_type,
        DEFAULTS[model_type],
        eps=eps,
        attention_bias=config.value("attention_bias", False),
        tie_word_embeddings=config.value("tie_word_embeddings", True),
        logit_scale=config.positive("logit_scale", LOGIT_SCALE),
        **more,
    )


def _experts(config: Config, mlps: tuple[str, ...]) -> dict[str, Any]:
    """The fields of routed and shared experts, and of blocks without. mlps: the mlp_layer_types."""
    scoring = config.value("expert_selection_fn", "softmax")
    check_choice(config.name, "expert_selection_fn", scoring, ("softmax", "sigmoid"))
    combined = config.value("shared_expert_combination_strategy", AVERAGE)
    check_choice(config.name, "shared_expert_combination_strategy", combined, (SUM, AVERAGE))
    shared = config.integer("num_shared_experts", 0, at_least=0)
    normalized = config.switch("norm_topk_prob", True)
    fields = {
        "num_local_experts": config.value("num_experts"),
        "num_experts_per_tok": config.value("num_experts_per_tok"),
        "shared_expert_intermediate_size": shared * config.integer("intermediate_size"),
        "averages_shared_expert": bool(shared) and combined == AVERAGE,
        # a softmax is of the chosen experts' logits alone
        "norm_topk_prob": normalized if scoring == "sigmoid" else True,
        "router": Router(scoring, GREEDY) if scoring == "sigmoid" else None,
    }
    if DENSE in mlps:
        width = config.integer("prefix_dense_intermediate_size", config.integer("intermediate_size"))
        fields |= {"mlp_layer_types": mlps, "dense_intermediate_size": width}
    return fields


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model, "rms_norm_eps" if model.use_rms_norm else "layer_norm_eps")
    config |= {"attention_bias": model.attention_bias, "logit_scale": model.logit_scale}
    if model.model_type == "cohere":
        return config | {"use_qk_norm": model.use_qk_norm}
    config |= {
        "sliding_window": model.sliding_window or WINDOW,
        "layer_types": list(model.layer_types or one_kind(model)),
    }
    if model.model_type == "cohere2":
        return config
    del config["rope_theta"], config["rope_scaling"]
    unturned = any(word == DENSE and not model.has_rope(layer) for layer, word in enumerate(model.mlp_layer_types))
    return (
        config
        | kind_keys(model)
        | rope_parameters(model)
        | {
            "num_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
            "num_shared_experts": model.shared_expert_intermediate_size // model.intermediate_size,
            "shared_expert_combination_strategy": AVERAGE if model.averages_shared_expert else SUM,
            "expert_selection_fn": "softmax" if model.router is None else model.router.scoring_func,
            "norm_topk_prob": model.norm_topk_prob,
            "prefix_dense_intermediate_size": model.dense_intermediate_size or None,
            PREFIX_PATTERN: PATTERN if unturned else 1,
        }
    )
