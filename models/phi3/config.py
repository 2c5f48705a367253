"""The config.json of Phi-3 and Phi-4."""

from __future__ import annotations

from typing import Any

from autoshard.models.config_fields import Config, partial_rope
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.spec.model import ModelSpec

ARCHITECTURES = {"phi3": "Phi3ForCausalLM"}
DEFAULTS = Defaults(norm_eps=1e-5, rope_theta=10_000.0)
DROPOUT = {
    "embedding": ("embd_pdrop", 0.0),
    "residual": ("resid_pdrop", 0.0),
    "attention": ("attention_dropout", 0.0),
}


def read(config: Config, model_type: str) -> ModelSpec:
    """The model of a config of Phi-3. Positions that are stretched for long sequences (longrope) are refused."""
    return read_as_llama(
        config,
        model_type,
        DEFAULTS,
        **partial_rope(config, DEFAULTS.rope_theta, 1.0),
        sliding_window=config.window(None),
    )


def write(model: ModelSpec) -> dict[str, Any]:
    windows = {"sliding_window": model.sliding_window, "partial_rotary_factor": model.partial_rotary_factor}
    return written_as_llama(model) | windows
