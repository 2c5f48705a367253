"""The names and the form of our parameters in Hugging Face checkpoints of Gemma: Llama's, and in Gemma 2 and 3 two
norms more; in VaultGemma the norm before the MLP has their name of it."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import ends, gated_mlp, norms, self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.model_type == "vaultgemma":
        yield from self_attention(model, f"{prefix}.self_attn")
        yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.pre_feedforward_layernorm")
        yield from gated_mlp(model, f"{prefix}.mlp", "ffn")
        return
    yield from llama.block(model, layer)
    if model.model_type == "gemma":
        return
    yield from norms(model, f"{prefix}.pre_feedforward_layernorm", f"{prefix}.post_feedforward_layernorm")
