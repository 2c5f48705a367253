"""The names and the form of our parameters in Hugging Face checkpoints of Granite with sliding windows.

A mixture has one tensor for gate and up of all experts, as transformers 5 has those of Granite 3.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.granite_hybrid.weights import experts, shared_mlp
from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield Part.same(f"{prefix}.self_attn.sinks", "(kvhead group)")
    if not model.is_moe:
        yield from llama.block(model, layer)
        return
    yield from attention(model, prefix)
    yield from experts(f"{prefix}.block_sparse_moe", "router.weight", "experts.gate_up_proj", "experts.down_proj")
    yield from shared_mlp(model, f"{prefix}.shared_mlp")
