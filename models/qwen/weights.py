"""The names and the form of our parameters in Hugging Face checkpoints of Qwen's mixtures.

The dense models are of the Llama form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autoshard.models.llama.weights import attention, ends, gated_mlp
from autoshard.models.mixtral.weights import fused_experts, mixture
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

MATRICES = {"gate_proj": "ffn embed", "up_proj": "ffn embed", "down_proj": "embed ffn"}


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from mlp(model, layer)


def fused_block(model: ModelSpec, layer: int) -> Iterator[Part]:
    """The parts of `block`, but with all experts in one tensor: how Qwen publishes Qwen3-VL's mixtures."""
    yield from with_fused_experts(model, layer, block(model, layer))


def with_fused_experts(model: ModelSpec, layer: int, parts: Iterable[Part]) -> Iterator[Part]:
    """Parts of a block, but with all its experts in one tensor."""
    experts = f"model.layers.{layer}.mlp.experts"
    yield from (part for part in parts if not part.tensor.startswith(f"{experts}."))
    if model.has_experts(layer):
        yield from fused_experts(experts)


def mlp(model: ModelSpec, layer: int) -> Iterator[Part]:
    """The parts of the checkpoint for a block's experts, or for its MLP where it has none."""
    prefix = f"model.layers.{layer}"
    if not model.has_experts(layer):
        yield from gated_mlp(model, f"{prefix}.mlp", "dense_ffn")
        return
    yield from mixture(model, f"{prefix}.mlp", MATRICES)
    if model.shared_expert_intermediate_size:
        yield from gated_mlp(model, f"{prefix}.mlp.shared_expert", "shared_ffn")
        yield Part.same(f"{prefix}.mlp.shared_expert_gate.weight", "1 embed")
