"""The names and the form of our parameters in Hugging Face checkpoints of Nemotron and Arcee."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from plain_mlp(model, f"{prefix}.mlp")


def plain_mlp(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for an MLP of two matrices. name: of it."""
    for part, rows, columns in (("up_proj", "ffn", "embed"), ("down_proj", "embed", "ffn")):
        yield Part.same(f"{name}.{part}.weight", f"{rows} {columns}")
        if model.mlp_bias:
            yield Part.same(f"{name}.{part}.bias", rows)
