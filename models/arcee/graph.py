"""The graph of Arcee as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import attention, embedding, head, rms_norm
from autoshard.models.nemotron.graph import squared_mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    x = attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    out = squared_mlp(b, model, h, f"{prefix}.mlp")
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"))
