"""The names and the form of our parameters in Hugging Face checkpoints of nanochat."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends
from autoshard.models.nanochat.graph import DOWN, UP
from autoshard.models.nemotron.weights import plain_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from plain_mlp(model, f"{prefix}.mlp", UP, DOWN)
