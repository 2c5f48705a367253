"""The names and the form of our parameters in Hugging Face checkpoints of Mistral Small 4's text model."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention
from autoshard.models.llama.weights import ends, gated_mlp
from autoshard.models.ministral3.weights import LEFT_OUT
from autoshard.models.mixtral.weights import fused_experts
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["LEFT_OUT", "block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from latent_attention(model, layer)
    name = f"model.layers.{layer}.mlp"
    if not model.has_experts(layer):
        yield from gated_mlp(model, name, "dense_ffn")
        return
    yield Part.same(f"{name}.gate.weight", "expert embed")
    yield from fused_experts(f"{name}.experts")
    if model.shared_expert_intermediate_size:
        yield from gated_mlp(model, f"{name}.shared_experts", "shared_ffn")
