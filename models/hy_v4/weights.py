"""The names and the form of our parameters in Hugging Face checkpoints of Hy4, as published."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention, mlp
from autoshard.models.hyper_connections import parts as streams
from autoshard.models.llama.weights import ends as llama_ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

LEFT_OUT = ("model.mtp_layers.",)
"""Prediction modules, which transformers leaves out too."""
SAVED = (
    (re.compile(r"\.hc_(attn_layer|mlp_layer|head)(\.hc_pre)?\."), r".hc_pre.hc_\1."),
    (re.compile(r"\.(mlp|shared_experts)\.gate_proj\."), r".\1.linear_gate."),
)
"""(what stands in names of tensors, what transformers 5.23 writes in its place)."""


def saved_as(tensor: str) -> str:
    """Transformers' name of a tensor. It undoes its own changes of names when it saves, and does not come back to the
    published ones."""
    for published, saved in SAVED:
        tensor = published.sub(saved, tensor)
    return tensor


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from streams(model, "model.hc_head.hc_head", "model.hc_head", writes=False)
    yield from llama_ends(model)


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from latent_attention(model, layer, gate_proj="linear_gate", sinks="learnable_sink_param")
    for ours, theirs in (("attn", "attn"), ("ffn", "mlp")):
        yield from streams(model, f"{prefix}.hc_{theirs}_layer.hc_pre.hc", f"{prefix}.{ours}_hc")
    yield from mlp(model, layer, fused=True)
