"""The graph of the mixtures of Qwen 2 and 3 as operators over named dims; the dense models are Llama's graph."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import HIDDEN, attention, embedding, gated_mlp, head
from autoshard.models.mixtral.graph import mixed_mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)


def mlp(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append what `mixed_mlp` does, with an expert that every token goes to as far as a gate of its own says."""
    return mixed_mlp(b, model, x, layer, "shared_expert", shared_expert)


def shared_expert(b: GraphBuilder, model: ModelSpec, h: str, name: str, ffn: str) -> str:
    """Append sigmoid(h . gate) * mlp(h), where the gate is one number for each token, and return its output."""
    out = gated_mlp(b, model, h, name, ffn)
    weight = b.parameter(f"{name}_gate.weight", "embed")
    gate = b.einsum(f"{name}_gate", f"{HIDDEN}, embed -> batch seq", h, weight)
    return b.elementwise("sigmoid_mul", f"{name}_gated", out, gate)
