"""The names and the form of our parameters in Hugging Face checkpoints of A.X-K1."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.axk1.graph import BEHIND_EXPERTS
from autoshard.models.deepseek import weights as deepseek
from autoshard.models.llama.weights import ends, norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

LEFT_OUT = (f"model.layers.0.{BEHIND_EXPERTS}.",)
"""A norm that the published model has behind its first block's MLP too, which transformers leaves aside."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from deepseek.block(model, layer)
    if model.has_experts(layer):
        yield from norms(model, f"model.layers.{layer}.{BEHIND_EXPERTS}")
