"""The names and the form of our parameters in Hugging Face checkpoints of OLMo 2 and 3, FlexOlmo and EXAONE 4."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, norms, self_attention
from autoshard.models.mixtral.weights import mixture
from autoshard.models.qwen.weights import MATRICES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from self_attention(model, f"{prefix}.self_attn")
    yield from norms(model, f"{prefix}.post_attention_layernorm", f"{prefix}.post_feedforward_layernorm")
    if model.is_moe:
        yield from mixture(model, f"{prefix}.mlp", MATRICES)
    else:
        yield from gated_mlp(model, f"{prefix}.mlp", "ffn")
