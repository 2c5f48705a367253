"""The graph of Mixtral as operators over named dims.

Tokens are routed, dispatched to slots, go through experts as batched matrix products, and are combined.
"""

from __future__ import annotations

from typing import Any

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import attention, embedding, head, rms_norm
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

SLOTS = "expert batch capacity"
"""Experts outermost: their products are one batched product of matrices that lie as it wants them, without copies."""
ROUTES = ("expert", "batch", "embed")
"""Dims that dispatch and combine can split: not the sequence, in whose order an expert's slots are given."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    x = attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    out = mixture(b, model, h, f"{prefix}.block_sparse_moe")
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.block_sparse_moe.dropout"))


def mixture(
    b: GraphBuilder,
    model: ModelSpec,
    h: str,
    name: str,
    gate: str = "w1",
    up: str = "w3",
    down: str = "w2",
) -> str:
    """Append the sum over the top k experts of weight * down(silu(gate(h)) * up(h)), and return its output.

    h: [batch, seq, embed]. Each expert has `capacity` slots for each sequence.
    gate, up, down: the family's names of an expert's matrices. The load-balancing loss is the mean of the layers'.
    """
    logits = b.einsum(
        f"{name}.gate",
        "batch seq embed, expert embed -> batch seq expert",
        h,
        b.parameter(f"{name}.gate.weight", "expert embed"),
    )
    router = model.router
    bias = []
    if router is not None and router.has_correction_bias:
        bias = [b.parameter(f"{name}.gate.e_score_correction_bias", "expert", learned=False)]
    chooses: dict[str, Any] = {} if router is None else {"router": router}
    gates = b.operator(
        "top_k_gate",
        f"{name}.top_k",
        (logits, *bias),
        ("batch", "seq", "expert"),
        ("batch", "seq"),
        top_k=model.num_experts_per_tok,
        normalized=model.norm_topk_prob,
        aux_loss_coef=model.router_aux_loss_coef / model.num_sparse_layers,
        **chooses,
    )
    slots = b.operator("dispatch", f"{name}.dispatch", (h, gates), (*SLOTS.split(), "embed"), ROUTES)
    gated, raised = (
        b.einsum(
            f"{name}.experts.{part}",
            f"{SLOTS} embed, expert ffn embed -> {SLOTS} ffn",
            slots,
            b.parameter(f"{name}.experts.{part}.weight", "expert ffn embed"),
        )
        for part in (gate, up)
    )
    answers = b.einsum(
        f"{name}.experts.{down}",
        f"{SLOTS} ffn, expert embed ffn -> {SLOTS} embed",
        b.elementwise("silu_mul", f"{name}.experts.act_fn", gated, raised),
        b.parameter(f"{name}.experts.{down}.weight", "expert embed ffn"),
    )
    return b.operator("combine", f"{name}.combine", (answers, gates), ("batch", "seq", "embed"), ROUTES)
