"""The config.json of Phi 1, 1.5 and 2."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope, shared_out
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"phi": "PhiForCausalLM"}
DROPOUT = {
    "embedding": ("embd_pdrop", 0.0),
    "residual": ("resid_pdrop", 0.0),
    "attention": ("attention_dropout", 0.0),
}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
ROTARY_PART = 0.5
UNSUPPORTED: tuple[tuple[str, object], ...] = (("qk_layernorm", True),)
"""A LayerNorm of each head, with a weight and a bias."""


def read(config: Config, model_type: str) -> ModelSpec:
    shared_out(config, "hidden_size", "num_attention_heads")  # checks head_dim
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        eps="layer_norm_eps",
        hidden_act=config.value("hidden_act", "gelu_new"),
        attention_bias=True,
        mlp_bias=True,
        **partial_rope(config, DEFAULTS.rope_theta, ROTARY_PART),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return written_as_llama(model, "layer_norm_eps") | {"partial_rotary_factor": model.partial_rotary_factor}
