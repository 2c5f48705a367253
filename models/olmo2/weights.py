"""The names and the form of our parameters in Hugging Face checkpoints of OLMo 2 and 3 and EXAONE 4."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, norms, projections
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends", "normalized_attention"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from normalized_attention(model, f"{prefix}.self_attn")
    yield from norms(model, f"{prefix}.post_attention_layernorm", f"{prefix}.post_feedforward_layernorm")
    yield from gated_mlp(model, f"{prefix}.mlp", "ffn")


def normalized_attention(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for an attention with norms over all heads, or each of them. name: of the
    attention."""
    yield from projections(model, name)
    for part, dims in (("q_norm", "(kvhead group headdim)"), ("k_norm", "(kvhead headdim)")):
        yield Part.same(f"{name}.{part}.weight", "headdim" if model.normalizes_heads else dims)
