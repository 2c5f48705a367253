"""The config.json of GPT-2 and of models in its form."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, shared_out
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED

ARCHITECTURES = {"gpt2": "GPT2LMHeadModel"}
DROPOUT = {"embedding": ("embd_pdrop", 0.1), "residual": ("resid_pdrop", 0.1), "attention": ("attn_pdrop", 0.1)}
UNSUPPORTED: tuple[tuple[str, object], ...] = (
    ("add_cross_attention", True),
    ("scale_attn_by_inverse_layer_idx", True),
    ("scale_attn_weights", False),
)


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of GPT-2 or GPT-3: biases everywhere, learned positions, the head tied to the embedding."""
    hidden_size = config.integer("n_embd")
    heads = config.integer("n_head", at_most=MOST_REPEATED)
    return ModelSpec(
        name=config.name,
        model_type=model_type,
        hidden_size=hidden_size,
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        num_hidden_layers=config.integer("n_layer", at_most=MOST_REPEATED),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=shared_out(config, "n_embd", "n_head"),
        vocab_size=config.value("vocab_size"),
        max_position_embeddings=config.integer("n_positions"),
        hidden_act=config.value("activation_function", "gelu_new"),
        norm_eps=config.positive("layer_norm_epsilon", 1e-5),
        rope_theta=None,
        rope_scaling=None,
        tie_word_embeddings=config.value("tie_word_embeddings", True),
        sliding_window=None,
        attention_bias=True,
        mlp_bias=True,
    )


def write(model: ModelSpec) -> dict[str, Any]:
    return {
        "n_embd": model.hidden_size,
        "n_inner": model.intermediate_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_positions": model.max_position_embeddings,
        "activation_function": model.hidden_act,
        "layer_norm_epsilon": model.norm_eps,
    }
