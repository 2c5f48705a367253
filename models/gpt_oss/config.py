"""The config.json of gpt-oss."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, one_kind, rope, stretched
from autoshard.models.llama.config import Defaults, read_as_llama, windows, written_as_llama
from autoshard.models.mixtral.config import routers_loss, routers_loss_keys
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FULL_ATTENTION, MOST_REPEATED, SLIDING_ATTENTION

ARCHITECTURES = {"gpt_oss": "GptOssForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=150_000.0, num_key_value_heads=8, head_dim=64)
WINDOW = 128
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""How positions are stretched where a config does not say."""
QUANTIZATIONS = ("mxfp4",)
"""quant_method of checkpoints whose model is read as the one that was quantised."""


def read(config: Config, model_type: str) -> ModelSpec:
    theta, _ = rope(config, DEFAULTS.rope_theta)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    types = tuple(FULL_ATTENTION if layer % 2 else SLIDING_ATTENTION for layer in range(layers))
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        rope_theta=theta,
        rope_scaling=stretched(config, config.rope(YARN)),
        attention_bias=config.value("attention_bias", True),
        mlp_bias=True,
        num_local_experts=config.value("num_local_experts", 128),
        num_experts_per_tok=config.value("num_experts_per_tok", 4),
        attention_scores=AttentionScores(sinks=True),
        clamped_gate=ClampedGate(config.positive("swiglu_limit", 7.0), config.positive("swiglu_alpha", 1.702)),
        **windows(config, WINDOW, types),
        **routers_loss(config),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    gate = model.clamped_gate
    assert gate is not None, model.name
    written = written_as_llama(model)
    if written["rope_scaling"] is None:
        written["rope_scaling"] = {"rope_type": "default"}
    return (
        written
        | routers_loss_keys(model)
        | {
            "sliding_window": model.sliding_window or WINDOW,  # transformers takes no null
            "layer_types": list(model.layer_types or one_kind(model)),
            "attention_bias": model.attention_bias,
            "num_local_experts": model.num_local_experts,
            "num_experts_per_tok": model.num_experts_per_tok,
            "swiglu_limit": gate.swiglu_limit,
            "swiglu_alpha": gate.swiglu_alpha,
        }
    )
