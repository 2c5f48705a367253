"""The names and the form of our parameters in Hugging Face checkpoints of Muse's text models."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, self_attention
from autoshard.models.mixtral.weights import mixture
from autoshard.models.muse.graph import GATES, NORMS, dense_dim
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix, gated = f"model.layers.{layer}", model.family.gates_residual
    name = f"{prefix}.mlp"
    yield from self_attention(model, f"{prefix}.self_attn")
    for norm in ("input_layernorm", *(NORMS[1:] if gated else NORMS)):
        yield Part.same(f"{prefix}.{norm}.weight", "embed")
    if gated:
        for gate in GATES:
            yield Part.same(f"{prefix}.{gate}.gate", "embed")
    if not model.has_experts(layer):
        yield from gated_mlp(model, name, dense_dim(model))
        return
    yield from mixture(model, name, {}, correction="gate.e_score_correction_bias", fused=True)
    yield Part.same(f"{name}.pre_expert_proj.weight", "latent embed")
    yield Part.same(f"{name}.pre_expert_norm.weight", "latent")
    yield Part.same(f"{name}.experts.post_expert_norm.weight", "latent")
    yield Part.same(f"{name}.post_expert_proj.weight", "embed latent")
