"""The graph of gpt-oss as operators over named dims: Llama's attention with sinks, Mixtral's experts with biases."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import attention, embedding, head, norm
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    x = attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    out = mixture(b, model, h, f"{prefix}.mlp", "gate_proj", "up_proj", "down_proj", "router")
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"))
