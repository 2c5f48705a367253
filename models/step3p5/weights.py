"""The names and the form of our parameters in Hugging Face checkpoints of Step 3.5 and 3.7."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, norms, self_attention
from autoshard.models.qwen.weights import MATRICES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

LEFT_OUT = tuple(f"model.layers.{layer}." for layer in (45, 46, 47))
"""Tensors of the multi-token prediction modules behind the 45 blocks of published models, which transformers leaves out
too."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix, heads = f"model.layers.{layer}", model.heads_of(layer)
    ours = f"{prefix}.{heads.attention_name}"
    yield from self_attention(model, f"{prefix}.self_attn", gate_proj="g_proj", own=(ours, heads))
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    mlp, moe = f"{prefix}.mlp", f"{prefix}.moe"
    if not model.has_experts(layer):
        yield from gated_mlp(model, mlp, "dense_ffn")
        return
    yield Part(f"{moe}.gate.weight", "expert embed", f"{mlp}.gate.weight")
    yield Part(f"{moe}.router_bias", "expert", f"{mlp}.gate.e_score_correction_bias")
    for matrix, layout in MATRICES.items():
        yield Part(f"{moe}.{matrix}.weight", f"expert {layout}", f"{mlp}.experts.{matrix}.weight")
    yield from gated_mlp(model, f"{mlp}.shared_experts", "shared_ffn", f"{prefix}.share_expert")
