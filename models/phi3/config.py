"""The config.json of Phi-3 and Phi-4."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import ORIGINAL, Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec
from autoshard.spec.rope import LONGROPE

ARCHITECTURES = {"phi3": "Phi3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
POSITIONS = 4096
"""Of the pre-training, where a config does not say it beside what stretches them."""
DROPOUT = {
    "embedding": ("embd_pdrop", 0.0),
    "residual": ("resid_pdrop", 0.0),
    "attention": ("attention_dropout", 0.0),
}


def read(config: Config, model_type: str) -> ModelSpec:
    config.fill({ORIGINAL: POSITIONS})
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **partial_rope(config, DEFAULTS.rope_theta, 1.0, known=(LONGROPE,)),
        sliding_window=config.window(None),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    more: dict[str, Any] = {"sliding_window": model.sliding_window}
    more["partial_rotary_factor"] = model.partial_rotary_factor
    if model.original_positions is not None:  # transformers reads it here alone
        more[ORIGINAL] = model.original_positions
    return written_as_llama(model) | more
