"""The names and the form of our parameters in Hugging Face checkpoints of Arcee."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import ends
from autoshard.models.nemotron.weights import squared_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from llama.attention(model, prefix)
    yield from squared_mlp(model, f"{prefix}.mlp")
