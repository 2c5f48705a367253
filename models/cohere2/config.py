"""The config.json of Cohere 2: Command R7B and Command A."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, one_kind, shared_out
from autoshard.models.llama.config import Defaults, every_few, needed_windows, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import (
    ATTENTION_TYPES,
    MOST_REPEATED,
    NOPE,
    ROPE,
    SLIDING_ATTENTION,
)

ARCHITECTURES = {"cohere2": "Cohere2ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
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
"""Keys of published configs that transformers does not read, and what it builds."""


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Cohere 2: blocks with a window have positions, the others none."""
    for key, known in ONLY.items():
        config.only(key, known)
    shared_out(config, "hidden_size", "num_attention_heads")  # checks head_dim
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    if config.gives("layer_types"):
        types = config.words("layer_types", layers, ATTENTION_TYPES)
    else:
        every = config.integer("sliding_window_pattern", PATTERN)
        types = every_few(layers, every)
    turned = tuple(ROPE if word == SLIDING_ATTENTION else NOPE for word in types)
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        eps="layer_norm_eps",
        attention_bias=config.value("attention_bias", False),
        tie_word_embeddings=config.value("tie_word_embeddings", True),
        logit_scale=config.positive("logit_scale", LOGIT_SCALE),
        position_types=turned if NOPE in turned else (),
        **needed_windows(config, WINDOW, types),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model)
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    return config | {
        "attention_bias": model.attention_bias,
        "logit_scale": model.logit_scale,
        "sliding_window": model.sliding_window or WINDOW,
        "layer_types": list(model.layer_types or one_kind(model)),
    }
