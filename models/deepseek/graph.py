"""The graph of DeepSeek-V2, V3, Kimi-K2 and GLM-4.7-Flash as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import embedding, gated_mlp, head, rms_norm
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head", "mlp"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, latent_attention(b, model, x, layer, kernel), layer)


def mlp(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append norm, MLP or experts with those that every token goes to, and residual; returns the sum's name.

    x: [batch, seq, embed]. layer: place of the block.
    """
    prefix = f"model.layers.{layer}"
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    if not model.has_experts(layer):
        dense = gated_mlp(b, model, h, f"{prefix}.mlp", "dense_ffn")
        return residual(b, model, f"{prefix}.mlp_residual", x, (dense, f"{prefix}.mlp.dropout"))
    routed = mixture(b, model, h, f"{prefix}.mlp", "gate_proj", "up_proj", "down_proj")
    branches = [(routed, f"{prefix}.mlp.dropout")]
    if model.shared_expert_intermediate_size:
        shared = gated_mlp(b, model, h, f"{prefix}.mlp.shared_experts", "shared_ffn")
        branches.append((shared, f"{prefix}.mlp.shared_experts_dropout"))
    return residual(b, model, f"{prefix}.mlp_residual", x, *branches)
