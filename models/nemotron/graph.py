"""The graph of Nemotron as operators over named dims: Llama's attention, an MLP of two matrices."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.gpt2.graph import plain_mlp
from autoshard.models.llama.graph import attention, embedding, head, norm
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    x = attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    out = plain_mlp(b, model, h, f"{prefix}.mlp", "up_proj", "down_proj")
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"))
