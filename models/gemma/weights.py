"""The names and the form of our parameters in Hugging Face checkpoints of Gemma: Llama's, and two norms more."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from llama.block(model, layer)
    for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
        yield Part.same(f"model.layers.{layer}.{norm}.weight", "embed")
