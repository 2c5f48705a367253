"""The names and the form of our parameters in Hugging Face checkpoints of LongCat-Flash, as published."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import self_attention
from autoshard.models.llama.weights import ends, gated_mlp
from autoshard.models.longcat_flash.graph import HALVES
from autoshard.models.mixtral.weights import mixture
from autoshard.models.qwen.weights import MATRICES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["LEFT_OUT", "block", "ends", "left_out"]

LEFT_OUT = ("model.mtp.",)
"""Prediction modules, which transformers leaves out too."""


def left_out(model: ModelSpec) -> tuple[str, ...]:
    """Prefixes of further tensors that are not read: transformers saves matrices of experts that have none."""
    without = range(model.num_local_experts, model.num_candidates)
    layers = range(model.num_hidden_layers)
    return tuple(f"model.layers.{layer}.mlp.experts.{expert}." for layer in layers for expert in without)


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    for place, half in enumerate(HALVES):
        own = f"{prefix}.{half}"
        yield from self_attention(model, layer, f"{prefix}.self_attn.{place}", f"{own}.self_attn")
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield Part(f"{prefix}.{norm}.{place}.weight", "embed", f"{own}.{norm}.weight")
        yield from gated_mlp(model, f"{own}.mlp", "dense_ffn", f"{prefix}.mlps.{place}")
    bias = "router.e_score_correction_bias"
    yield from mixture(model, f"{prefix}.mlp", MATRICES, router="router.classifier", correction=bias)
