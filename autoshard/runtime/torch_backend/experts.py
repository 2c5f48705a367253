"""Computes routers and experts: which tokens an expert gets, in which slots, and the sum of the experts' answers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from einops import rearrange

from autoshard.graph.partition import OperatorStep
from autoshard.graph.states import PARTIAL
from autoshard.runtime.torch_backend.context import Context, Kernel, in_pieces
from autoshard.runtime.torch_backend.recomputing_ops import WeighedRows, weighed_sums
from autoshard.runtime.torch_backend.router_loss import balance
from autoshard.spec.router import GROUPS_BEST, SQRT_SOFTPLUS


def top_k_gate(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of a router's gate: logits [batch, seq, expert] -> the weight of each expert's answer, zero for all
    but the top k."""
    top_k: Any = step.operator.attributes["top_k"]
    router: Any = step.operator.attributes.get("router")
    balanced = balance(context, step)

    hashed = step.operator.attributes.get("hashed")

    def gate(logits: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        accurate = torch.promote_types(logits.dtype, torch.float32)
        if router is None or router.scoring_func == "softmax":
            weights = torch.softmax(logits, -1, dtype=accurate)
        elif router.scoring_func == SQRT_SOFTPLUS:
            weights = F.softplus(logits.to(accurate)).sqrt()
        else:
            weights = torch.sigmoid(logits.to(accurate))
        if router is None:
            best, experts = weights.topk(top_k, -1)
        elif hashed:
            table, tokens = more
            experts = table[tokens].long()
            best = weights.gather(-1, experts)
        else:
            compared = logits.to(accurate) if router.chooses_by_logits else weights
            experts = _chosen(compared.detach(), router, top_k, *more)
            best = weights.gather(-1, experts)
        if balanced is not None:
            weights = balanced(weights, experts)
            best = weights.gather(-1, experts)
        if step.operator.attributes["normalized"]:
            best = best / best.sum(-1, keepdim=True)
        if router is not None and router.routed_scaling_factor != 1:
            best = best * router.routed_scaling_factor
        gates = torch.zeros_like(weights)
        # a table may name an expert twice
        gates = gates.scatter_add(-1, experts, best) if hashed else gates.scatter(-1, experts, best)
        return gates.to(logits.dtype)

    return gate


def sum_rest(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the weight that the last of a router's choices have together: gates [batch, seq, candidate] ->
    [batch, seq]."""
    first: Any = step.operator.attributes["first"]
    return lambda gates: gates[..., first:].sum(-1)


def _chosen(scores: torch.Tensor, router: Any, top_k: int, *bias: torch.Tensor) -> torch.Tensor:
    """The experts of each token, [batch, seq, top_k]: the best of the best groups. scores: or logits, [batch, seq,
    expert]. bias: [expert], added to them where there is one."""
    if bias:
        scores = scores + bias[0].detach()
    if router.topk_group < router.n_group:
        groups = scores.unflatten(-1, (router.n_group, -1))
        best = groups.topk(GROUPS_BEST[router.topk_method], -1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(router.topk_group, -1).indices, True)
        scores = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)
    return scores.topk(top_k, -1).indices


def dispatch(context: Context, step: OperatorStep) -> Kernel:
    """The kernel that sends tokens to experts: x [batch, seq, embed], gates [batch, seq, expert] -> [expert, batch,
    capacity, embed], free slots zero."""
    tokens = _tokens_in_slots(context, step)
    if step.operator.attributes.get("weighs"):
        return lambda x, gates: _weighed_tokens(x, gates, tokens(gates.detach()))

    def run(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        token = tokens(gates.detach())
        batch, seq, embed = x.shape
        filled = (token < seq).unsqueeze(-1)
        rows = (token.clamp(max=seq - 1) + _first_rows(batch, seq, x.device)).flatten()
        found = rearrange(x, "batch seq embed -> (batch seq) embed").index_select(0, rows)
        return found.view(*token.shape, embed) * filled

    return run


def _weighed_tokens(x: torch.Tensor, gates: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """The slots that `dispatch` gives, each token times its gate for the expert. token: in each slot."""
    batch, seq = x.shape[:2]
    rows = (token.clamp(max=seq - 1) + _first_rows(batch, seq, x.device)).flatten()
    weight = _weights_in_slots(gates, token).unsqueeze(-1)
    out: torch.Tensor = WeighedRows.apply(rearrange(x, "batch seq embed -> (batch seq) embed"), weight, rows)
    return out


def _weights_in_slots(gates: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """The gate of the token in each slot, [expert, batch, capacity]; a free slot weighs nothing."""
    return rearrange(F.pad(gates, (0, 0, 0, 1)), "batch seq expert -> expert batch seq").gather(2, token)


def combine(context: Context, step: OperatorStep) -> Kernel:
    """The kernel that sums answers: answers [expert, batch, capacity, embed], gates [batch, seq, expert] -> [batch,
    seq, embed]. A bias [expert, embed] is part of each answer."""
    tokens = _tokens_in_slots(context, step)
    adds_bias = float(context.is_first(step, PARTIAL))
    weighs = step.operator.attributes.get("weighs", True)

    def run(answers: torch.Tensor, gates: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = gates.shape
        token = tokens(gates.detach())
        # a free slot weighs nothing and goes to a row behind the last token's
        weight = _weights_in_slots(gates, token) if weighs else (token < seq).to(answers.dtype)
        rows = token + _first_rows(batch, seq + 1, answers.device)
        sums = weighed_sums(answers, weight.unsqueeze(-1), rows, batch * (seq + 1))
        out = rearrange(sums, "(batch seq) embed -> batch seq embed", batch=batch)[:, :seq]
        for one in bias:
            has_slot = torch.zeros(*token.shape[:2], seq + 1, dtype=gates.dtype, device=gates.device)
            has_slot = rearrange(has_slot.scatter_(2, token, 1.0)[:, :, :seq], "expert batch seq -> batch seq expert")
            out = out + (gates * has_slot * adds_bias) @ one
        return out

    return run


def _tokens_in_slots(context: Context, step: OperatorStep) -> Kernel:
    """A function from gates to [expert, batch, capacity]: the token in each slot; the sequence's length where a slot is
    free.

    Tokens queue for an expert in the order of the original sequence, in whatever order its pieces lie here.
    """
    capacity, length = (context.graph.sizes[dim] for dim in ("capacity", "seq"))
    pieces: Any = step.operator.attributes.get("sequence_pieces")
    places = in_pieces(length, pieces)
    in_order = pieces is None or pieces == tuple(sorted(pieces))

    def position_in_queue(chosen: torch.Tensor) -> torch.Tensor:
        if in_order:
            return chosen.cumsum(-1) - 1
        original = places.to(chosen.device)
        return chosen[..., original.argsort()].cumsum(-1)[..., original] - 1

    def tokens(gates: torch.Tensor) -> torch.Tensor:
        batch, seq, experts = gates.shape
        chosen = rearrange(gates != 0, "batch seq expert -> batch expert seq").contiguous()  # a queue lies in one piece
        slot = position_in_queue(chosen)
        slot = torch.where(chosen & (slot < capacity), slot, capacity)  # others point behind the last one
        token = torch.full((batch, experts, capacity + 1), seq, device=gates.device)
        token.scatter_(2, slot, torch.arange(seq, device=gates.device).expand_as(slot))
        return rearrange(token[..., :capacity], "batch expert capacity -> expert batch capacity").contiguous()

    return tokens


def _first_rows(batch: int, seq: int, device: torch.device) -> torch.Tensor:
    """The row at which each sequence begins when all follow one another, [batch, 1]."""
    return torch.arange(batch, device=device).mul_(seq).unsqueeze(1)
