"""The names and the form of our parameters in Hugging Face checkpoints of Llama 4's text models.

A tensor holds all experts, and their gates before what they raise.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends, gated_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    name = f"{prefix}.feed_forward"
    if not model.has_experts(layer):
        yield from gated_mlp(model, name, "dense_ffn")
        return
    yield Part.same(f"{name}.router.weight", "expert embed")
    for index, part in enumerate(("gate_proj", "up_proj")):
        experts = f"{name}.experts.{part}.weight"
        yield Part(f"{name}.experts.gate_up_proj", "expert embed (part ffn)", experts, index, 2)
    yield Part(f"{name}.experts.down_proj", "expert ffn embed", f"{name}.experts.down_proj.weight")
    yield from gated_mlp(model, f"{name}.shared_expert", "shared_ffn")
