"""The names and the form of our parameters in Hugging Face checkpoints of Laguna."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import ends, norms, self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix, heads = f"model.layers.{layer}", model.heads_of(layer)
    hub, ours = f"{prefix}.self_attn", f"{prefix}.{heads.attention_name}"
    yield from self_attention(model, hub, gate_proj="g_proj", own=(ours, heads))
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    yield from mlp(model, layer, "shared_expert", correction="experts.e_score_correction_bias")
