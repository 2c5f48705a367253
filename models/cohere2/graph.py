"""The graph of Cohere and Cohere 2 as operators over named dims: attention and MLP read one norm of the block's
input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import embedding, gated_mlp, head, norm, self_attention
from autoshard.models.mixtral.graph import mixture_with_shared
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return side_by_side(b, model, x, layer, kernel, partial(_mlp, layer=layer))


def side_by_side(
    b: GraphBuilder,
    model: ModelSpec,
    x: str,
    layer: int,
    kernel: str,
    inner: Callable[[GraphBuilder, ModelSpec, str, str], str],
) -> str:
    """Append x + attention(norm(x)) + mlp(norm(x)), and return its output. x: [batch, seq, embed]. inner: appends the
    MLP to the norm's output, and is called with (b, model, that output, its name)."""
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    attention = self_attention(b, model, h, layer, kernel)
    b.module = "mlp"
    mlp = inner(b, model, h, f"{prefix}.mlp")
    branches = (attention, f"{prefix}.self_attn.dropout"), (mlp, f"{prefix}.mlp.dropout")
    return residual(b, model, f"{prefix}.residual", x, *branches)


def _mlp(b: GraphBuilder, model: ModelSpec, h: str, name: str, layer: int) -> str:
    """Append an MLP; of a mixture the sum or the mean of the experts and the one that every token goes to, or an MLP
    where a block has no experts. Returns the output. h: [batch, seq, embed]. name: of it."""
    if not model.has_experts(layer):
        return gated_mlp(b, model, h, name, "dense_ffn" if model.is_moe else "ffn")
    both = mixture_with_shared(b, model, h, name)
    return b.scaled(f"{name}.mean", both, 0.5) if model.averages_shared_expert else both
