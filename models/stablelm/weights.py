"""The names and the form of our parameters in Hugging Face checkpoints of StableLM."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.cohere2 import weights as cohere2
from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from (cohere2 if model.use_parallel_residual else llama).block(model, layer)
