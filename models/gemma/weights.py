"""The names and the form of our parameters in Hugging Face checkpoints of Gemma: Llama's, and from Gemma 2
on two norms more."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import ends, norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from llama.block(model, layer)
    if model.model_type == "gemma":
        return
    yield from norms(model, f"{prefix}.pre_feedforward_layernorm", f"{prefix}.post_feedforward_layernorm")
