"""The config.json of nanochat."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"nanochat": "NanoChatForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-6, rope_theta=10_000.0)
LOGITS_CAP = 15.0


def read(config: Config, model_type: str) -> ModelSpec:
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        hidden_act=config.value("hidden_act", "relu2"),
        attention_bias=config.value("attention_bias", False),
        final_logit_softcapping=config.optional("final_logit_softcapping", LOGITS_CAP),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    own = {"attention_bias": model.attention_bias, "final_logit_softcapping": model.final_logit_softcapping}
    return written_as_llama(model) | own
