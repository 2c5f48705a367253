"""The names and the form of our parameters in Hugging Face checkpoints of Nemotron."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama import weights as llama
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from llama.attention(model, prefix)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Part.same(f"{prefix}.{norm}.bias", "embed")
    yield from squared_mlp(model, f"{prefix}.mlp")


def squared_mlp(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for an MLP of two matrices. name: of the MLP."""
    for part, rows, columns in (("up_proj", "ffn", "embed"), ("down_proj", "embed", "ffn")):
        yield Part.same(f"{name}.{part}.weight", f"{rows} {columns}")
        if model.mlp_bias:
            yield Part.same(f"{name}.{part}.bias", rows)


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from llama.ends(model)
    yield Part.same("model.norm.bias", "embed")
