"""The graph of Mistral Large 4: DeepSeek-V3.2's blocks, whose attention has traits of the family."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.deepseek.graph import embedding, head, mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append a block, in which the norm of compressed vectors is like the others, and return its output. x: [batch,
    seq, embed]."""
    return mlp(b, model, latent_attention(b, model, x, layer, kernel, model.norm_eps), layer)
