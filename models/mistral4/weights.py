"""The names and the form of our parameters in Hugging Face checkpoints of Mistral Small 4's text model."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention, mlp
from autoshard.models.llama.weights import ends
from autoshard.models.ministral3.weights import LEFT_OUT
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["LEFT_OUT", "block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from latent_attention(model, layer)
    yield from mlp(model, layer, fused=True)
