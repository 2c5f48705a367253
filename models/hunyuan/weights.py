"""The names and the form of our parameters in Hugging Face checkpoints of Hunyuan."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import attention, ends, gated_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix, q_norm="query_layernorm", k_norm="key_layernorm")
    if model.is_moe:
        yield from mlp(model, layer, shared="shared_mlp", router="gate.wg")
    else:
        yield from gated_mlp(model, f"{prefix}.mlp", "ffn")
