"""The names and the form of our parameters in Hugging Face checkpoints of Gemma 4: a tensor has all experts of a block.

Published ones have images and sound too, and tensors of the text model as model.language_model.*.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.gemma4.graph import BEFORE_EXPERTS, BEHIND_EXPERTS, BEHIND_MLP, NORMS
from autoshard.models.llama.weights import ends, gated_mlp, norms, self_attention
from autoshard.models.mixtral.weights import fused_experts
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

LEFT_OUT = tuple(f"model.{part}." for part in ("vision_tower", "audio_tower", "embed_vision", "embed_audio"))
"""Tensors of the parts that see images and hear."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix, heads = f"model.layers.{layer}", model.heads_of(layer)
    yield from self_attention(model, f"{prefix}.self_attn", own=(f"{prefix}.{heads.attention_name}", heads))
    yield from norms(model, *(f"{prefix}.{name}" for name in NORMS))
    yield from gated_mlp(model, f"{prefix}.mlp", "shared_ffn" if model.is_moe else "ffn")
    yield Part.same(f"{prefix}.layer_scalar", "1")
    if not model.is_moe:
        return
    yield from norms(model, *(f"{prefix}.{name}" for name in (BEHIND_MLP, BEFORE_EXPERTS, BEHIND_EXPERTS)))
    yield Part(f"{prefix}.router.scale", "embed", f"{prefix}.router.norm.weight")
    yield Part.same(f"{prefix}.router.proj.weight", "expert embed")
    yield Part.same(f"{prefix}.router.per_expert_scale", "expert")
    yield from fused_experts(f"{prefix}.experts")
