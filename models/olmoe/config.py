"""The config.json of OLMoE."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.models.config_fields import Config, shared_out
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"olmoe": "OlmoeForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of OLMoE. Queries, keys and values that are cut off (clip_qkv) are refused: transformers
    cuts them behind their norms, which no published model does."""
    if config.gives("clip_qkv"):
        raise AutoshardError(f"clip_qkv={show(config.value('clip_qkv'))} of {config.name} is not supported; null is")
    shared_out(config, "hidden_size", "num_attention_heads")  # the norms have the hidden size
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        attention_bias=config.value("attention_bias", False),
        num_local_experts=config.value("num_experts", 64),
        num_experts_per_tok=config.value("num_experts_per_tok", 8),
        norm_topk_prob=config.value("norm_topk_prob", False),
        **routers_loss(config),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model) | routers_loss_keys(model)
    return config | {
        "attention_bias": model.attention_bias,
        "num_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "norm_topk_prob": model.norm_topk_prob,
    }
