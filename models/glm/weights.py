"""The names and the form of our parameters in Hugging Face checkpoints of GLM: Llama's attention, Phi-3's fused MLP."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends
from autoshard.models.phi3.weights import fused_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from fused_mlp(f"{prefix}.mlp")
