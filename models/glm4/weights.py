"""The names and the form of our parameters in Hugging Face checkpoints of GLM-4."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends, norms
from autoshard.models.phi3.weights import fused_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from norms(model, f"{prefix}.post_self_attn_layernorm", f"{prefix}.post_mlp_layernorm")
    yield from fused_mlp(f"{prefix}.mlp")
