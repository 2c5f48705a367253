"""The graph of Gemma 4 as operators over named dims: Gemma's blocks, perhaps with experts beside the MLP."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.gemma.graph import normed_attention
from autoshard.models.llama.graph import embedding, gated_mlp, head, norm
from autoshard.models.mixtral.graph import chosen, routed
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
BEHIND_MLP = "post_feedforward_layernorm_1"
BEFORE_EXPERTS, BEHIND_EXPERTS = "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"
"""Norms of blocks with experts beside NORMS; their last one is behind the sum of MLP and experts."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append x + norm(attention(norm(x))), the same with the MLP, and a number of the block times that; returns it.
    x: [batch, seq, embed]."""
    prefix = f"model.layers.{layer}"
    _, behind_attention, before, behind = NORMS
    x = normed_attention(b, model, x, layer, kernel, behind_attention)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.{before}", x)
    b.module = "mlp"
    down = gated_mlp(b, model, h, f"{prefix}.mlp", "shared_ffn" if model.is_moe else "ffn")
    if model.is_moe:
        b.module = "mlp_norm"
        down = norm(b, model, f"{prefix}.{BEHIND_MLP}", down)
        answers = _experts(b, model, x, prefix)
        b.module = "mlp"
        down = b.elementwise("add", f"{prefix}.mlp_sum", down, answers)
    b.module = "mlp_norm"
    down = norm(b, model, f"{prefix}.{behind}", down)
    x = residual(b, model, f"{prefix}.mlp_residual", x, (down, f"{prefix}.mlp.dropout"))
    return b.elementwise("scaled_by", f"{prefix}.scaled", x, b.parameter(f"{prefix}.layer_scalar", "", learned=False))


def _experts(b: GraphBuilder, model: ModelSpec, x: str, prefix: str) -> str:
    """Append norm(experts(norm(x))), and return it. x: [batch, seq, embed]. prefix: of the block's names.

    The router has a norm of its own, whose weight the checkpoint calls its scale, and logits over the root of the
    width. Each expert has a factor of its answers, which the choice does not see.
    """
    router = f"{prefix}.router"
    b.module = "mlp_norm"
    seen = norm(b, model, f"{router}.norm", x)
    h = norm(b, model, f"{prefix}.{BEFORE_EXPERTS}", x)
    b.module = "mlp"
    gates = chosen(b, model, seen, prefix, "router.proj", logit_scale=model.hidden_size**-0.5)
    factors = b.parameter(f"{router}.per_expert_scale", "expert")
    weights = b.pointwise(f"{router}.weights", "(mul x0 x1)", gates, factors)
    answers = routed(b, model, h, gates, weights, prefix)
    b.module = "mlp_norm"
    return norm(b, model, f"{prefix}.{BEHIND_EXPERTS}", answers)
