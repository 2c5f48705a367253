"""The graph of MiniMax-M2 as operators over named dims: OLMo 2's attention behind a norm, Mixtral's experts."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import embedding, head, norm
from autoshard.models.mixtral.graph import mlp
from autoshard.models.olmo2.graph import normalized_attention
from autoshard.spec.model import ModelSpec

__all__ = ["attention", "block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)


def attention(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append norm, attention with norms over all heads, and residual, and return the sum's name."""
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    out = normalized_attention(b, model, h, layer, kernel)
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
