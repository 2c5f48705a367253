"""The names and the form of our parameters in Hugging Face checkpoints of GLM-5.3, as they are published."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention, mlp
from autoshard.models.hyper_connections import parts as streams
from autoshard.models.kimi_linear.weights import delta_attention
from autoshard.models.llama.weights import ends, norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["LEFT_OUT", "block", "ends"]

LEFT_OUT = tuple(f"model.{outer}layers.45." for outer in ("language_model.", ""))
"""Tensors of the multi-token prediction module behind the 45 blocks of the published model, which transformers leaves
out too."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        yield from delta_attention(f"{prefix}.self_attn", f"{prefix}.linear_attn", "linear_key_head")
        yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    else:
        yield from latent_attention(model, layer)
    for part in ("attn", "ffn"):
        yield from streams(model, f"{prefix}.hc_{part}", f"{prefix}.{part}_hc")
    yield from mlp(model, layer)
