"""The names and the form of our parameters in Hugging Face checkpoints of OLMo Hybrid."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp
from autoshard.models.olmo2.weights import block as attention_block
from autoshard.models.qwen3_next.graph import KEYS, VALUES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["block", "ends"]

NORMS = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}
"""Those of a block with linear attention: their names there -> ours."""
OF_VALUES = "linear_key_head linear_group"
PROJECTED = {"q": ("q", KEYS), "k": ("k", KEYS), "v": ("v", VALUES), "g": ("z", VALUES)}
PROJECTED |= {"a": ("a", OF_VALUES), "b": ("b", OF_VALUES)}
"""Projections of linear attention: their names there -> ours, and their rows."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    if model.mixer_of(layer) != LINEAR_ATTENTION:
        yield from attention_block(model, layer)
        return
    prefix = f"model.layers.{layer}"
    name = f"{prefix}.linear_attn"
    for hub, (ours, dims) in PROJECTED.items():
        yield Part(f"{name}.{hub}_proj.weight", f"({dims}) embed", f"{name}.{ours}_proj.weight")
    for part in ("q", "k", "v"):
        yield Part.same(f"{name}.{part}_conv1d.weight", f"({PROJECTED[part][1]}) 1 linear_tap")
    for part in ("A_log", "dt_bias"):
        yield Part.same(f"{name}.{part}", f"({OF_VALUES})")
    yield Part(f"{name}.o_norm.weight", "linear_valuedim", f"{name}.norm.weight")
    yield Part(f"{name}.o_proj.weight", f"embed ({VALUES})", f"{name}.out_proj.weight")
    for hub, norm in NORMS.items():
        yield Part(f"{prefix}.{hub}.weight", "embed", f"{prefix}.{norm}.weight")
    yield from gated_mlp(model, f"{prefix}.mlp", "ffn")
