"""The names and the form of our parameters in Hugging Face checkpoints of MiniMax-M2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, norms
from autoshard.models.mixtral.weights import MATRICES, mixture
from autoshard.models.olmo2.weights import normalized_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["attention", "block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from mixture(model, f"{prefix}.block_sparse_moe", MATRICES, correction="e_score_correction_bias")


def attention(model: ModelSpec, prefix: str) -> Iterator[Part]:
    """The parts of the checkpoint for a block's attention and for both of its norms. prefix: of the block's names."""
    yield from normalized_attention(model, f"{prefix}.self_attn")
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
