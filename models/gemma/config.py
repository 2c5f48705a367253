"""The config.json of Gemma, Gemma 2, VaultGemma, and of the text models of Gemma 3."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, one_kind, ropes_of_kinds
from autoshard.models.llama.config import Defaults, every_few, read_as_llama, windows, written_as_llama
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MOST_REPEATED

ARCHITECTURES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "vaultgemma": "VaultGemmaForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
UNSUPPORTED = (("use_bidirectional_attention", True),)
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0, num_key_value_heads=4, head_dim=256)
GELU = "gelu_pytorch_tanh"
WINDOW = 4096
SCORES_CAP, LOGITS_CAP = 50.0, 30.0
"""Of Gemma 2 and VaultGemma where a config does not say; Gemma 3 has none."""
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
PATTERN = {"gemma2": 2, "vaultgemma": 2, "gemma3_text": 6}
"""Every so many blocks there is one without a window; Gemma 3 has a key for it."""
SIZES = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}
"""Sizes of Gemma 3 in transformers: the text_config of a published one leaves out those that are its own too."""


def read(config: Config, model_type: str) -> ModelSpec:
    if model_type == "gemma":
        first = Defaults(DEFAULTS.norm_eps, DEFAULTS.rope_theta, head_dim=DEFAULTS.head_dim)
        return read_as_llama(config, model_type, first, **usual_fields(config, key="hidden_act"))
    if model_type == "gemma3_text":
        config.fill(SIZES)
    layers = config.integer("num_hidden_layers", at_most=MOST_REPEATED)
    pattern, is_gemma3 = PATTERN[model_type], model_type == "gemma3_text"
    pattern = config.integer("sliding_window_pattern", pattern) if is_gemma3 else pattern
    more: dict[str, Any] = _windows(config, layers, pattern)
    caps: tuple[float | None, float | None] = (None, None)
    if not is_gemma3:
        caps = (SCORES_CAP, LOGITS_CAP)
    else:
        theta, scaling, local = ropes_of_kinds(config, GLOBAL_THETA, LOCAL_THETA)
        more |= {"rope_theta": theta, "rope_scaling": scaling, "rope_local_base_freq": local}
    scores_cap = config.optional("attn_logit_softcapping", caps[0])
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **usual_fields(config),
        attention_scores=AttentionScores(
            query_pre_attn_scalar=config.positive("query_pre_attn_scalar", 256),
            attn_logit_softcapping=None if is_gemma3 else scores_cap,  # transformers caps no scores of Gemma 3
        ),
        final_logit_softcapping=config.optional("final_logit_softcapping", caps[1]),
        **more,
    )


def usual_fields(config: Config, key: str = "hidden_activation") -> dict[str, Any]:
    """The fields of Gemma's models whose keys, or values without the key, are not Llama's. key: of the activation, by
    which the first Gemma means the approximate GELU also where it says gelu."""
    activation = config.value(key, GELU)
    return {
        "hidden_act": GELU if key == "hidden_act" and activation == "gelu" else activation,
        "tie_word_embeddings": config.value("tie_word_embeddings", True),
        "attention_bias": config.value("attention_bias", False),
    }


def _windows(config: Config, layers: int, pattern: int) -> dict[str, Any]:
    return windows(config, WINDOW, every_few(layers, pattern))


def write(model: ModelSpec) -> dict[str, Any]:
    written = written_as_llama(model)
    if model.model_type == "gemma":
        return written | {"attention_bias": model.attention_bias}
    written["hidden_activation"] = written.pop("hidden_act")
    scores, scalar = model.attention_scores, model.attention_scores.query_pre_attn_scalar
    written |= {
        "sliding_window": model.sliding_window or WINDOW,  # transformers asks for one even where no block has it
        "layer_types": list(model.layer_types or one_kind(model)),
        "attention_bias": model.attention_bias,
        # transformers takes no 256.0
        "query_pre_attn_scalar": int(scalar) if scalar is not None and scalar % 1 == 0 else scalar,
        "attn_logit_softcapping": scores.attn_logit_softcapping,
        "final_logit_softcapping": model.final_logit_softcapping,
    }
    if model.rope_local_base_freq is not None:
        written["rope_local_base_freq"] = model.rope_local_base_freq
    return written
