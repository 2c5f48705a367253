"""The names and the form of our parameters in Hugging Face checkpoints of Kolibri 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

BEHIND = {"post_attn_norm": "post_self_attn_layernorm", "post_ffn_norm": "post_mlp_layernorm"}
"""The checkpoint's names of the norms behind attention and MLP -> ours."""
CORRECTION = "mlp.gate.e_score_correction_bias"


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    for hub, own in BEHIND.items():
        yield Part(f"{prefix}.{hub}.weight", "embed", f"{prefix}.{own}.weight")
    for part in mlp(model, layer):
        corrects = part.parameter == f"{prefix}.{CORRECTION}"
        yield replace(part, tensor=f"{prefix}.moe.router.expert_bias") if corrects else part
