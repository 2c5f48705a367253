"""The graph of Ling 3.0 as operators over named dims."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.deepseek.graph import mlp
from autoshard.models.kimi_linear.graph import delta_attention
from autoshard.models.llama.graph import embedding, head, normed_mixer
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        x = normed_mixer(b, model, x, layer, "linear_attn", partial(delta_attention, brings_down=False))
    else:
        x = latent_attention(b, model, x, layer, kernel)
    return mlp(b, model, x, layer)
