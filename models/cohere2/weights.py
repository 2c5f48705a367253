"""The names and the form of our parameters in Hugging Face checkpoints of Cohere and of Cohere 2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import ends, gated_mlp, norms, self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from self_attention(model, f"{prefix}.self_attn")
    yield from norms(model, f"{prefix}.input_layernorm")
    yield from mlp(model, layer) if model.is_moe else gated_mlp(model, f"{prefix}.mlp", "ffn")
