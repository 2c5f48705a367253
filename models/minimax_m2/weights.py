"""The names and the form of our parameters in Hugging Face checkpoints of MiniMax-M2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends
from autoshard.models.mixtral.weights import MATRICES, mixture
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from mixture(model, f"{prefix}.block_sparse_moe", MATRICES, correction="e_score_correction_bias")
