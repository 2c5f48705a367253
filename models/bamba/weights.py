"""The names and the form of our parameters in Hugging Face checkpoints of Bamba: Falcon-H1's, but for its mixers."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.falcon_h1.weights import ends, norms_and_mlp
from autoshard.models.granite_hybrid.weights import state_space
from autoshard.models.llama.weights import self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == MAMBA:
        yield from state_space(model, f"{prefix}.mamba")
    else:
        yield from self_attention(model, f"{prefix}.self_attn")
    yield from norms_and_mlp(model, prefix)
