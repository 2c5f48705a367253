"""The names and the form of our parameters in Hugging Face checkpoints of OLMoE."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends
from autoshard.models.minimax_m2.weights import attention
from autoshard.models.qwen.weights import mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from attention(model, f"model.layers.{layer}")
    yield from mlp(model, layer)
