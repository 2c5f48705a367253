"""The graph of DeepSeek-V2, V3, Kimi-K2 and GLM-4.7-Flash as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.llama.graph import embedding, gated_mlp, head
from autoshard.models.mixtral.graph import mixed_mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head", "mlp"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, latent_attention(b, model, x, layer, kernel), layer)


def mlp(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append what `mixed_mlp` does, with experts that every token goes to in one MLP."""
    return mixed_mlp(b, model, x, layer, "shared_experts", gated_mlp)
