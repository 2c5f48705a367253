"""The names and the form of our parameters in Hugging Face checkpoints of K-EXAONE."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

LEFT_OUT = ("mtp.",)
"""Tensors of the multi-token prediction module, which transformers leaves out too."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from attention(model, f"model.layers.{layer}")
    yield from mlp(model, layer, correction="e_score_correction_bias")
