"""The graph of Mixtral as operators over named dims.

Tokens are routed, dispatched to slots, go through experts as batched matrix products, and are combined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.gpt2.graph import activated
from autoshard.models.llama.graph import (
    attention,
    embedding,
    gated,
    gated_mlp,
    head,
    linear,
    norm,
    normed_mlp,
    with_bias,
)
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ROUTED, SHARED
from autoshard.spec.router import GREEDY, Router

__all__ = ["block", "embedding", "head"]

SLOTS = "expert batch capacity"
"""Experts outermost: their products are one batched product of matrices that lie as it wants them, without copies."""
ROUTES = ("expert", "batch", "embed")
"""Dims that dispatch and combine can split: not the sequence, in whose order an expert's slots are given."""
NARROW = "batch seq embed, latent embed -> batch seq latent"
WIDE = "batch seq latent, embed latent -> batch seq embed"
"""Products that bring tokens down to what experts of a moe_latent_size see, and their answers up."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)


def mlp(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append norm, experts and residual, and return the sum's name. x: [batch, seq, embed]."""
    return normed_mlp(b, model, x, layer, "block_sparse_moe", mixture)


def mixed_mlp(
    b: GraphBuilder, model: ModelSpec, x: str, layer: int, shared_name: str, shared_expert: Callable[..., str]
) -> str:
    """Append norm, experts with the shared one, or an MLP where a block has no experts, and residual; returns the sum's
    name.

    x: [batch, seq, embed]. layer: place of the block. shared_expert: appends the expert that every token goes to; it is
    called as `gated_mlp` is. shared_name: the family's name of that expert.
    """
    prefix = f"model.layers.{layer}"
    name = f"{prefix}.mlp"
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    if not model.has_experts(layer):
        dense = gated_mlp(b, model, h, name, "dense_ffn", model.activation_of(layer, SHARED))
        return residual(b, model, f"{prefix}.mlp_residual", x, (dense, f"{name}.dropout"))
    activation = model.activation_of(layer, ROUTED)
    answers = mixture(b, model, h, name, "gate_proj", "up_proj", "down_proj", activation=activation)
    branches = [(answers, f"{name}.dropout")]
    if model.shared_expert_intermediate_size:
        shared = shared_expert(b, model, h, f"{name}.{shared_name}", "shared_ffn")
        branches.append((shared, f"{name}.{shared_name}_dropout"))
    return residual(b, model, f"{prefix}.mlp_residual", x, *branches)


def mixture_with_shared(
    b: GraphBuilder, model: ModelSpec, h: str, name: str, shared_activation: str | None = None, **named: Any
) -> str:
    """Append the sum of the experts and the one that every token goes to, if there is one, and return it. h: [batch,
    seq, embed]. name: of both. shared_activation: as of `gated`. named: of `mixture`."""
    routed = mixture(b, model, h, name, "gate_proj", "up_proj", "down_proj", **named)
    if not model.shared_expert_intermediate_size:
        return routed
    shared = gated_mlp(b, model, h, f"{name}.shared_experts", "shared_ffn", shared_activation)
    return b.elementwise("add", f"{name}.sum", routed, shared)


def experts_or_mlp(b: GraphBuilder, model: ModelSpec, h: str, layer: int) -> tuple[str, str]:
    """Append a block's experts, or its dense MLP where it has none, and return (the output, the name of its dropout
    operator). h: [batch, seq, embed]. layer: place of the block."""
    b.module, name = "mlp", f"model.layers.{layer}.mlp"
    shared, routed = (model.activation_of(layer, experts) for experts in (SHARED, ROUTED))
    if not model.has_experts(layer):
        return gated_mlp(b, model, h, name, "dense_ffn", shared), f"{name}.dropout"
    hashed = model.hashes(layer)
    return mixture_with_shared(b, model, h, name, shared, activation=routed, hashed=hashed), f"{name}.dropout"


def mixture(
    b: GraphBuilder,
    model: ModelSpec,
    h: str,
    name: str,
    gate: str = "w1",
    up: str = "w3",
    down: str = "w2",
    router_name: str = "gate",
    weighs_tokens: bool = False,
    activation: str | None = None,
    hashed: bool = False,
) -> str:
    """Append the sum over the top k experts of weight * down(silu(gate(h)) * up(h)), and return its output.

    h: [batch, seq, embed]. Each expert has `capacity` slots for each sequence. Experts of a family without a gate are
    down(act(up(h))). With a moe_latent_size, all experts share a product that brings h down before they see it, and one
    that brings the sum of their answers up.
    gate, up, down, router_name: the family's names of an expert's matrices and of the router. weighs_tokens: what goes
    to an expert is multiplied by the sigmoid of its logit, and answers are only added up (Llama 4). The load-balancing
    loss is the mean of the layers'. activation: as of `gated`. hashed: a table of tokens chooses the experts. A bias
    behind `down` counts once for each expert that has a slot for the token. Experts without matrices answer with the
    token itself.
    """
    gates = chosen(b, model, h, name, router_name, weighs_tokens, hashed=hashed)
    parts = gate, up, down
    if not model.zero_expert_num:
        return routed(b, model, h, gates, gates, name, parts, weighs_tokens, activation)
    rows = ("batch", "seq")
    own = b.operator("slice", f"{name}.experts.weights", (gates,), (*rows, "expert"), rows, first=0)
    answers = routed(b, model, h, own, own, name, parts, weighs_tokens, activation)
    rest = b.operator("sum_rest", f"{name}.zero_experts.weight", (gates,), rows, rows, first=model.num_local_experts)
    same = b.pointwise(f"{name}.zero_experts", "(mul x0 x1)", h, rest)
    return b.elementwise("add", f"{name}.sum", answers, same)


def candidates(model: ModelSpec) -> str:
    """The dim of all that a router chooses among."""
    return "candidate" if model.zero_expert_num else "expert"


def chosen(
    b: GraphBuilder,
    model: ModelSpec,
    h: str,
    name: str,
    router_name: str = "gate",
    weighs_tokens: bool = False,
    logit_scale: float | None = None,
    hashed: bool = False,
) -> str:
    """Append a router's logits of h [batch, seq, embed] and its choice, and return the weights of the experts' answers
    [batch, seq, `candidates`], 0 for all but the top k. name, router_name, weighs_tokens, hashed: as of `mixture`.
    logit_scale: by which logits are multiplied, if they are."""
    bias, dim = model.mlp_bias, candidates(model)
    product = linear(b, f"{name}.{router_name}", h, f"batch seq embed, {dim} embed -> batch seq {dim}", bias)
    logits = with_bias(b, f"{name}.{router_name}", product, dim, bias)
    if logit_scale is not None:
        logits = b.scaled(f"{name}.{router_name}_scaled", logits, logit_scale)
    router = Router("sigmoid", GREEDY) if weighs_tokens else model.router
    correction, chooses = list[str](), dict[str, Any]()
    if hashed:
        table = b.parameter(f"{name}.gate.tid2eid", "token choice", learned=False, matrix=False)
        correction, chooses = [table, b.index_input("input_ids", "batch seq")], {"hashed": True}
    elif router is not None and router.has_correction_bias:
        correction = [b.parameter(f"{name}.gate.e_score_correction_bias", dim, learned=False)]
    if router is not None:
        chooses["router"] = router
    return b.operator(
        "top_k_gate",
        f"{name}.top_k",
        (logits, *correction),
        ("batch", "seq", dim),
        ("batch", "seq"),
        top_k=model.num_experts_per_tok,
        normalized=model.norm_topk_prob,
        aux_loss_coef=model.router_aux_loss_coef / model.num_sparse_layers,
        **chooses,
    )


def routed(
    b: GraphBuilder,
    model: ModelSpec,
    h: str,
    gates: str,
    weights: str,
    name: str,
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    weighs_tokens: bool = False,
    activation: str | None = None,
) -> str:
    """Append the way of h [batch, seq, embed] to its experts and through them, and return the sum of their answers.

    The arguments are those of `answered`.
    """
    if model.moe_latent_size is None:
        return answered(b, model, h, gates, weights, name, parts, weighs_tokens, activation)
    sent = linear(b, f"{name}.fc1_latent_proj", h, NARROW, False)
    out = answered(b, model, sent, gates, weights, name, parts, weighs_tokens, activation)
    return linear(b, f"{name}.fc2_latent_proj", out, WIDE, False)


def answered(
    b: GraphBuilder,
    model: ModelSpec,
    sent: str,
    gates: str,
    weights: str,
    name: str,
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    weighs_tokens: bool = False,
    activation: str | None = None,
    behind: Callable[[str], str] | None = None,
) -> str:
    """Append the way of tokens [batch, seq, width] to their experts and through them, and return the sum of the
    answers, as wide.

    gates: [batch, seq, expert], not 0 for the experts that a token goes to. weights: the same, by which answers are
    multiplied. name, weighs_tokens, activation: as of `mixture`. parts: the family's names of an expert's gate, up and
    down. behind: appends what becomes of each answer before it is multiplied and summed; it is called with the answers
    of all slots, and returns theirs.
    """
    bias, (gate, up, down) = model.mlp_bias, parts
    weighs: dict[str, Any] = {"weighs": True} if weighs_tokens else {}
    sums: dict[str, Any] = {"weighs": False} if weighs_tokens else {}
    embed = b.dims(sent)[-1]
    routes = (*ROUTES[:2], embed)
    slots = b.operator("dispatch", f"{name}.dispatch", (sent, gates), (*SLOTS.split(), embed), routes, None, **weighs)
    experts = f"{name}.experts"
    products = {
        part: linear(b, f"{experts}.{part}", slots, f"{SLOTS} {embed}, expert ffn {embed} -> {SLOTS} ffn", bias)
        for part in ((gate, up) if model.family.has_gate else (up,))
    }
    raised = {
        part: with_bias(b, f"{experts}.{part}", product, "expert ffn", bias) for part, product in products.items()
    }
    if not model.family.has_gate:
        act = activated(b, model, experts, raised[up])
    else:
        act = gated(b, model, experts, raised[gate], raised[up], activation)
    answers = linear(b, f"{experts}.{down}", act, f"{SLOTS} ffn, expert {embed} ffn -> {SLOTS} {embed}", False)
    if behind is not None:
        answers, sums = behind(answers), {**sums, "whole": True}
    added = (b.parameter(f"{experts}.{down}.bias", "expert embed"),) if bias else ()
    return b.operator(
        "combine", f"{name}.combine", (answers, weights, *added), ("batch", "seq", embed), routes, None, **sums
    )
