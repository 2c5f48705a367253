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
    shared_out(config, "hidden_size", "num_attention_heads")  # the norms have the hidden size
    bias = config.value("attention_bias", False)
    return read_as_llama(config, model_type, DEFAULTS, attention_bias=bias, **mixture(config, 64, 8))


def mixture(config: Config, experts: int, chosen: int) -> dict[str, Any]:
    """Fields of the model for its experts. experts, chosen: their number, and how many a token goes to, without the
    keys. Queries, keys and values that are cut off (clip_qkv) are refused: transformers cuts OLMoE's behind their
    norms, which no published model does, and FlexOlmo's not at all."""
    if config.gives("clip_qkv"):
        raise AutoshardError(f"clip_qkv={show(config.value('clip_qkv'))} of {config.name} is not supported; null is")
    return {
        "num_local_experts": config.value("num_experts", experts),
        "num_experts_per_tok": config.value("num_experts_per_tok", chosen),
        "norm_topk_prob": config.value("norm_topk_prob", False),
        **routers_loss(config, 0.01),
    }


def write(model: ModelSpec) -> dict[str, Any]:
    return written_as_llama(model) | {"attention_bias": model.attention_bias} | mixture_keys(model)


def mixture_keys(model: ModelSpec) -> dict[str, Any]:
    """The keys that `mixture` reads."""
    return {
        "num_experts": model.num_local_experts,
        "num_experts_per_tok": model.num_experts_per_tok,
        "norm_topk_prob": model.norm_topk_prob,
        **routers_loss_keys(model),
    }
