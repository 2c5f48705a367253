"""The names and the form of our parameters in Hugging Face checkpoints of Gemma 4: a tensor has all experts of a block.

Published ones have images and sound too, and tensors of the text model as model.language_model.*.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.gemma4.graph import (
    BEFORE_EXPERTS,
    BEHIND_EXPERTS,
    BEHIND_INPUT,
    BEHIND_MLP,
    NORMS,
    PROJECTION_OF_BLOCK,
    SHARED_NORM,
    TABLE_OF_BLOCK,
    mlp_of,
)
from autoshard.models.llama.weights import ends as usual_ends
from autoshard.models.llama.weights import gated_mlp, norms, self_attention
from autoshard.models.mixtral.weights import fused_experts
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

LEFT_OUT = tuple(f"model.{part}." for part in ("vision_tower", "audio_tower", "embed_vision", "embed_audio"))
"""Tensors of the parts that see images and hear."""
OF_KEYS = ("k_proj", "v_proj", "k_norm")
"""What an attention has not that takes keys and values of another block."""


def left_out(model: ModelSpec) -> tuple[str, ...]:
    """Prefixes of further tensors that are not read: transformers leaves them out too, if a checkpoint has them."""
    shared = filter(model.shares_keys, range(model.num_hidden_layers))
    return tuple(f"model.layers.{layer}.self_attn.{part}." for layer in shared for part in (*OF_KEYS, "v_norm"))


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from usual_ends(model)
    if model.hidden_size_per_layer_input is not None:
        yield Part.same(SHARED_NORM, "layer_input")


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix, heads = f"model.layers.{layer}", model.heads_of(layer)
    for part in self_attention(model, f"{prefix}.self_attn", own=(f"{prefix}.{heads.attention_name}", heads)):
        if not (model.shares_keys(layer) and part.tensor.split(".")[-2] in OF_KEYS):
            yield part
    yield from norms(model, *(f"{prefix}.{name}" for name in NORMS))
    name, dim = mlp_of(model, layer)
    yield from gated_mlp(model, f"{prefix}.{name}", dim, hub=f"{prefix}.mlp")
    yield Part.same(f"{prefix}.layer_scalar", "1")
    if model.hidden_size_per_layer_input is not None:
        layouts = {TABLE_OF_BLOCK: "vocab (part layer_input)", PROJECTION_OF_BLOCK: "(part layer_input) embed"}
        for name, layout in layouts.items():
            ours, parts = f"{prefix}.{name}.weight", model.num_hidden_layers
            yield Part(f"model.{name}.weight", layout, ours, index=layer, parts=parts)
        yield Part.same(f"{prefix}.per_layer_input_gate.weight", "layer_input embed")
        yield Part.same(f"{prefix}.per_layer_projection.weight", "embed layer_input")
        yield from norms(model, f"{prefix}.{BEHIND_INPUT}")
    if not model.is_moe:
        return
    yield from norms(model, *(f"{prefix}.{name}" for name in (BEHIND_MLP, BEFORE_EXPERTS, BEHIND_EXPERTS)))
    yield Part(f"{prefix}.router.scale", "embed", f"{prefix}.router.norm.weight")
    yield Part.same(f"{prefix}.router.proj.weight", "expert embed")
    yield Part.same(f"{prefix}.router.per_expert_scale", "expert")
    yield from fused_experts(f"{prefix}.experts")
