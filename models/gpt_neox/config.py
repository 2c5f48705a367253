"""The config.json of GPT-NeoX and Pythia."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_positive, show
from autoshard.models.config_fields import Config, rope, rope_keys, shared_out, sizes
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED

ARCHITECTURES = {"gpt_neox": "GPTNeoXForCausalLM"}
DROPOUT = {
    "embedding": ("hidden_dropout", 0.0),
    "residual": ("hidden_dropout", 0.0),
    "attention": ("attention_dropout", 0.0),
}


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of GPT-NeoX or Pythia: LayerNorm and biases everywhere, rotary positions on part of each
    head.
    """
    heads = config.integer("num_attention_heads", at_most=MOST_REPEATED)
    rope_theta, rope_scaling = rope(config, config.positive("rotary_emb_base", 10_000.0), partial_is_known=True)
    attention_bias = config.value("attention_bias", True)
    if attention_bias is not True:
        raise AutoshardError(f"attention_bias={show(attention_bias)} of {config.name} is not supported; True is")
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=config.value("hidden_size"),
        intermediate_size=config.value("intermediate_size"),
        num_hidden_layers=config.value("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=shared_out(config, "hidden_size", "num_attention_heads"),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.value("max_position_embeddings"),
        hidden_act=config.value("hidden_act", "gelu"),
        norm_eps=config.positive("layer_norm_eps", 1e-5),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=config.value("tie_word_embeddings", False),
        sliding_window=None,
        attention_bias=True,
        mlp_bias=True,
        partial_rotary_factor=_neox_rotary_part(config),
        use_parallel_residual=config.value("use_parallel_residual", True),
    )


def _neox_rotary_part(config: Config) -> float:
    """The rotary share of each head: rotary_pct, or the key under rope_parameters that transformers 5 writes."""
    part = config.rope().get("partial_rotary_factor")
    part = config.value("rotary_pct", 0.25) if part is None else part
    check_positive(config.name, "rotary_pct", part)
    return float(part)


def write(model: ModelSpec) -> dict[str, Any]:
    return (
        sizes(model)
        | rope_keys(model)
        | {
            "layer_norm_eps": model.norm_eps,
            "rotary_emb_base": model.rope_theta,
            "rotary_pct": model.partial_rotary_factor,
            "use_parallel_residual": model.use_parallel_residual,
            "attention_bias": model.attention_bias,
        }
    )
