"""The names and the form of our parameters in Hugging Face checkpoints of Nemotron, Arcee, Jais 2 and StarCoder2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

OTHER_NAMES = {"starcoder2": {"up_proj": "c_fc", "down_proj": "c_proj"}}
"""What a family calls the matrices of its MLP."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from plain_mlp(model, f"{prefix}.mlp")


def plain_mlp(
    model: ModelSpec, name: str, up_name: str = "up_proj", down_name: str = "down_proj", ffn: str = "ffn"
) -> Iterator[Part]:
    """The parts of the checkpoint for an MLP of two matrices. name: of it. up_name, down_name: our names of its
    matrices. ffn: its inner dim."""
    named = OTHER_NAMES.get(model.model_type, {})
    for part, rows, columns in ((up_name, ffn, "embed"), (down_name, "embed", ffn)):
        hub = f"{name}.{named.get(part, part)}"
        yield Part(f"{hub}.weight", f"{rows} {columns}", f"{name}.{part}.weight")
        if model.mlp_bias:
            yield Part(f"{hub}.bias", rows, f"{name}.{part}.bias")
