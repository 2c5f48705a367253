"""The names and the form of our parameters in Hugging Face checkpoints of Phi-3.

qkv_proj holds queries, keys and values behind one another, gate_up_proj both matrices of the gated MLP.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, fused_projections, norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends", "fused_mlp"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    name = f"{prefix}.self_attn"
    yield from fused_projections(model, f"{name}.qkv_proj", name)
    yield Part.same(f"{name}.o_proj.weight", "embed (kvhead group headdim)")
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    yield from fused_mlp(f"{prefix}.mlp")


def fused_mlp(name: str) -> Iterator[Part]:
    """The parts of the checkpoint for a gated MLP with both matrices in one tensor. name: of the MLP."""
    for index, part in enumerate(("gate_proj", "up_proj")):
        yield Part(f"{name}.gate_up_proj.weight", "(part ffn) embed", f"{name}.{part}.weight", index, 2)
    yield Part.same(f"{name}.down_proj.weight", "embed ffn")
