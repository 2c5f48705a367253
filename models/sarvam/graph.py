"""The graph of Sarvam as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.deepseek.graph import mlp
from autoshard.models.llama.graph import attention, embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    mix = attention if model.latent_attention is None else latent_attention
    return mlp(b, model, mix(b, model, x, layer, kernel), layer)
