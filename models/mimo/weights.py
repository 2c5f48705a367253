"""The names and the form of our parameters in Hugging Face checkpoints of MiMo-V2-Flash."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import ends, norms, self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

LEFT_OUT = ("model.mtp.",)
"""Tensors of the multi-token prediction modules, which transformers leaves out too."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix, heads = f"model.layers.{layer}", model.heads_of(layer)
    hub, ours = f"{prefix}.self_attn", f"{prefix}.{heads.attention_name}"
    yield from self_attention(model, hub, own=(ours, heads))
    if model.has_sinks(layer):
        yield Part(f"{hub}.attention_sink_bias", f"({' '.join(heads.query_dims[:2])})", f"{ours}.sinks")
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    yield from mlp(model, layer)
