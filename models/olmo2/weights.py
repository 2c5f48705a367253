"""The names and the form of our parameters in Hugging Face checkpoints of OLMo 2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, projections
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from projections(model, f"{prefix}.self_attn")
    yield Part.same(f"{prefix}.self_attn.q_norm.weight", "(kvhead group headdim)")
    yield Part.same(f"{prefix}.self_attn.k_norm.weight", "(kvhead headdim)")
    yield Part.same(f"{prefix}.post_attention_layernorm.weight", "embed")
    yield Part.same(f"{prefix}.post_feedforward_layernorm.weight", "embed")
    yield from gated_mlp(model, f"{prefix}.mlp", "ffn")
