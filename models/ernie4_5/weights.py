"""The names and the form of our parameters in Hugging Face checkpoints of ERNIE 4.5."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import attention, ends, gated_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

LEFT_OUT = ("model.mtp_",)
"""Tensors of the multi-token prediction module, which transformers leaves out too."""
CORRECTION = "moe_statics.e_score_correction_bias"


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    if model.is_moe:
        yield from mlp(model, layer, correction=CORRECTION, correction_layout="1 expert")
    else:
        yield from gated_mlp(model, f"{prefix}.mlp", "ffn")
