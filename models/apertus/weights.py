"""The names and the form of our parameters in Hugging Face checkpoints of Apertus."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.xielu import LEARNED, PARTS
from autoshard.models.llama.weights import ends, self_attention
from autoshard.models.nemotron.weights import plain_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

NORMS = {"attention_layernorm": "input_layernorm", "feedforward_layernorm": "post_attention_layernorm"}
"""The checkpoint's name of a norm -> ours."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from self_attention(model, f"{prefix}.self_attn")
    for hub, ours in NORMS.items():
        yield Part(f"{prefix}.{hub}.weight", "embed", f"{prefix}.{ours}.weight")
    yield from plain_mlp(model, f"{prefix}.mlp")
    for part in PARTS:
        yield Part.same(f"{prefix}.mlp.act_fn.{part}", "1" if part in LEARNED else "")
