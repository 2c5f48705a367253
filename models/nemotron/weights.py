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
    for part, rows, columns in (("up_proj", "ffn", "embed"), ("down_proj", "embed", "ffn")):
        yield Part.same(f"{prefix}.mlp.{part}.weight", f"{rows} {columns}")
        if model.mlp_bias:
            yield Part.same(f"{prefix}.mlp.{part}.bias", rows)
