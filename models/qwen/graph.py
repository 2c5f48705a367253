"""The graph of the mixtures of Qwen 2 and 3 as operators over named dims; the dense models are Llama's graph."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import HIDDEN, attention, embedding, gated_mlp, head, rms_norm
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)


def mlp(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append norm, experts with the shared one, or an MLP where a block has no experts, and residual; returns the sum's
    name.

    x: [batch, seq, embed]. layer: place of the block.
    """
    prefix = f"model.layers.{layer}"
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    if not model.has_experts(layer):
        dense = gated_mlp(b, model, h, f"{prefix}.mlp", "dense_ffn")
        return residual(b, model, f"{prefix}.mlp_residual", x, (dense, f"{prefix}.mlp.dropout"))
    out = mixture(b, model, h, f"{prefix}.mlp", "gate_proj", "up_proj", "down_proj")
    branches = [(out, f"{prefix}.mlp.dropout")]
    if model.shared_expert_intermediate_size:
        shared = _shared_expert(b, model, h, f"{prefix}.mlp")
        branches.append((shared, f"{prefix}.mlp.shared_expert_dropout"))
    return residual(b, model, f"{prefix}.mlp_residual", x, *branches)


def _shared_expert(b: GraphBuilder, model: ModelSpec, h: str, name: str) -> str:
    """Append sigmoid(h . gate) * mlp(h), where the gate is one number for each token, and return its output."""
    out = gated_mlp(b, model, h, f"{name}.shared_expert", "shared_ffn")
    weight = b.parameter(f"{name}.shared_expert_gate.weight", "embed")
    gate = b.einsum(f"{name}.shared_expert_gate", f"{HIDDEN}, embed -> batch seq", h, weight)
    return b.elementwise("sigmoid_mul", f"{name}.shared_expert_gated", out, gate)
