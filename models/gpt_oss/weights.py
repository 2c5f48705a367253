"""The names and the form of our parameters in Hugging Face checkpoints of gpt-oss.

A tensor holds all experts, and gate and raised columns in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield Part.same(f"{prefix}.self_attn.sinks", "(kvhead group)")
    yield Part.same(f"{prefix}.mlp.router.weight", "expert embed")
    yield Part.same(f"{prefix}.mlp.router.bias", "expert")
    experts = f"{prefix}.mlp.experts"
    for index, part in enumerate(("gate_proj", "up_proj")):
        yield Part(f"{experts}.gate_up_proj", "expert embed (ffn part)", f"{experts}.{part}.weight", index, 2)
        yield Part(f"{experts}.gate_up_proj_bias", "expert (ffn part)", f"{experts}.{part}.bias", index, 2)
    yield Part(f"{experts}.down_proj", "expert ffn embed", f"{experts}.down_proj.weight")
    yield Part(f"{experts}.down_proj_bias", "expert embed", f"{experts}.down_proj.bias")
