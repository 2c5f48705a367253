"""The names and the form of our parameters in Hugging Face checkpoints of Youtu-LLM."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention
from autoshard.models.llama.weights import ends, gated_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from latent_attention(model, layer)
    yield from gated_mlp(model, f"model.layers.{layer}.mlp", "ffn")
