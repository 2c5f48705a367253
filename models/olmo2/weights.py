"""The names and the form of our parameters in Hugging Face checkpoints of OLMo 2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, projections
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends", "normalized_attention"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from normalized_attention(model, f"{prefix}.self_attn")
    yield Part.same(f"{prefix}.post_attention_layernorm.weight", "embed")
    yield Part.same(f"{prefix}.post_feedforward_layernorm.weight", "embed")
    yield from gated_mlp(model, f"{prefix}.mlp", "ffn")


def normalized_attention(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for an attention with norms over all heads. name: of the attention."""
    yield from projections(model, name)
    yield Part.same(f"{name}.q_norm.weight", "(kvhead group headdim)")
    yield Part.same(f"{name}.k_norm.weight", "(kvhead headdim)")
