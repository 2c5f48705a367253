"""The config.json of families with an MLP of two matrices behind Llama's attention: Nemotron, Arcee, Jais 2 and
StarCoder2."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {
    "nemotron": "NemotronForCausalLM",
    "arcee": "ArceeForCausalLM",
    "jais2": "Jais2ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
DROPOUT = {
    "embedding": ("embedding_dropout", 0.0),
    "residual": ("residual_dropout", 0.0),
    "attention": ("attention_dropout", 0.0),
}
"""StarCoder2's; the others have attention's alone."""
DEFAULTS = {
    "nemotron": Defaults(norm_eps=1e-5, rope_theta=10_000.0),
    "arcee": Defaults(norm_eps=1e-5, rope_theta=10_000.0),
    "jais2": Defaults(norm_eps=1e-5, rope_theta=10_000.0),
    "starcoder2": Defaults(norm_eps=1e-5, rope_theta=10_000.0, num_key_value_heads=2),
}
EPS = {"nemotron": "norm_eps", "jais2": "layer_norm_eps", "starcoder2": "norm_epsilon"}
"""Key of what norms add to a variance, where that is not Llama's."""


def read(config: Config, model_type: str) -> ModelSpec:
    more: dict[str, Any] = {"hidden_act": config.value("hidden_act", "relu2")}
    biases: dict[str, Any] = {key: config.value(key, False) for key in ("attention_bias", "mlp_bias")}
    if model_type == "nemotron":
        more |= partial_rope(config, 10_000.0, 0.5)
    elif model_type == "jais2":
        biases = {key: config.value(key, True) for key in biases}
    elif model_type == "starcoder2":
        biases = dict.fromkeys(biases, config.value("use_bias", True))
        more = {
            "hidden_act": config.value("hidden_act", "gelu_pytorch_tanh"),
            "sliding_window": config.window(None),
            "tie_word_embeddings": config.value("tie_word_embeddings", True),
        }
    eps = EPS.get(model_type, "rms_norm_eps")
    return read_as_llama(config, model_type, DEFAULTS[model_type], eps=eps, **biases, **more)


def write(model: ModelSpec) -> dict[str, Any]:
    config = written_as_llama(model, EPS.get(model.model_type, "rms_norm_eps"))
    if model.model_type == "starcoder2":
        return config | {"use_bias": model.attention_bias, "sliding_window": model.sliding_window}
    if model.model_type == "nemotron":
        config["partial_rotary_factor"] = model.partial_rotary_factor
    return config | {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias}
