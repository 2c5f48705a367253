"""The names and the form of our parameters in Hugging Face checkpoints of GLM-4.5, dots.llm1 and Solar Open."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from attention(model, f"model.layers.{layer}")
    yield from mlp(model, layer)
