"""The graph of OLMo 2 and 3, FlexOlmo and EXAONE 4 as operators over named dims.

Norms stand behind attention and MLP, and over all heads, or over each head of EXAONE.
"""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import embedding, gated_mlp, head, norm, self_attention
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    out = self_attention(b, model, x, layer, kernel)
    b.module = "attention_norm"
    out = norm(b, model, f"{prefix}.post_attention_layernorm", out)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
    b.module = "mlp"
    if model.is_moe:
        out = mixture(b, model, x, f"{prefix}.mlp", "gate_proj", "up_proj", "down_proj")
    else:
        out = gated_mlp(b, model, x, f"{prefix}.mlp")
    b.module = "mlp_norm"
    out = norm(b, model, f"{prefix}.post_feedforward_layernorm", out)
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"))
