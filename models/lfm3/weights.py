"""The names and the form of our parameters in Hugging Face checkpoints of LFM3."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.lfm2.weights import dense_mlp, ends, short_conv
from autoshard.models.lfm3.graph import BEFORE_MLP, BEHIND_MIXER, BEHIND_MLP
from autoshard.models.llama.weights import norms, self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CONV

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == CONV:
        yield from short_conv(model, f"{prefix}.conv")
    else:
        yield from self_attention(model, f"{prefix}.self_attn")
    yield Part(f"{prefix}.operator_norm.weight", "embed", f"{prefix}.input_layernorm.weight")
    yield from norms(model, *(f"{prefix}.{name}" for name in (BEHIND_MIXER, BEFORE_MLP, BEHIND_MLP)))
    yield from dense_mlp(prefix, "ffn")
