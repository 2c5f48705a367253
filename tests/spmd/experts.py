"""Routers and experts in numpy: which tokens an expert gets, and their answers."""

from __future__ import annotations

import numpy as np

from autoshard.graph.states import PARTIAL, REPLICATED
from autoshard.spec.router import GROUPS_BEST
from tests.spmd.collectives import Array, all_reduce
from tests.spmd.place import Gradients, Place, Result


def top_k_gate(place: Place, logits: Array, *bias: Array) -> Result:
    if place.attributes.get("router") is not None:
        return _routed(place, logits, *bias)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    order = np.argsort(np.argsort(-weights, -1), -1)
    chosen = order < place.attributes["top_k"]
    normalized = place.attributes["normalized"]
    total = (weights * chosen).sum(-1, keepdims=True) if normalized else 1.0
    gates = weights * chosen / total
    slope = _balance_slope(place, chosen)

    def backward(grad: Array) -> Gradients:
        common = (grad * gates).sum(-1, keepdims=True) if normalized else 0.0
        by_weight = np.where(chosen, grad - common, 0) / total + slope
        return (weights * (by_weight - (by_weight * weights).sum(-1, keepdims=True)),)

    return gates, backward


def _routed(place: Place, logits: Array, *bias: Array) -> Result:
    """As a Router says. bias: of the choice, [*mesh, expert]; or a table of experts, and the tokens."""
    router = place.attributes["router"]
    if router.scoring_func == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    elif router.scoring_func == "sqrtsoftplus":
        scores = np.logaddexp(0, logits) ** 0.5
    else:
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
    if place.attributes.get("hashed"):
        return _weighed(place, logits, scores, _named(place, scores, *bias), len(bias))
    ranked = logits if router.chooses_by_logits else scores
    ranked = ranked + bias[0][..., None, None, :] if bias else ranked
    groups = ranked.reshape(*ranked.shape[:-1], router.n_group, -1)
    best = -np.sort(-groups, -1)[..., : GROUPS_BEST.get(router.topk_method, 1)].sum(-1)
    kept = np.argsort(np.argsort(-best, -1), -1) < router.topk_group
    ranked = np.where(kept[..., None], groups, -np.inf).reshape(ranked.shape)
    chosen = np.argsort(np.argsort(-ranked, -1), -1) < place.attributes["top_k"]
    return _weighed(place, logits, scores, chosen.astype(float), len(bias))


def _named(place: Place, scores: Array, table: Array, tokens: Array) -> Array:
    """[*mesh, batch, seq, expert]: how often the table [*mesh, token, choice] names an expert for a token."""
    mesh = tuple(place.axes.values())
    found = np.zeros_like(scores)
    for at in np.ndindex(*mesh):
        named = table[at][tokens[at].astype(int)]
        found[at] = (named[..., None] == np.arange(scores.shape[-1])).sum(-2)
    return found


def _weighed(place: Place, logits: Array, scores: Array, chosen: Array, others: int) -> Result:
    """The gates of experts. chosen: how often each one is. others: inputs beside the logits."""
    router = place.attributes["router"]
    normalized, factor = place.attributes["normalized"], router.routed_scaling_factor
    total = (scores * chosen).sum(-1, keepdims=True) if normalized else 1.0
    gates = scores * chosen / total

    def backward(grad: Array) -> Gradients:
        common = (grad * gates).sum(-1, keepdims=True) if normalized else 0.0
        by_score = factor * chosen * (grad - common) / total
        nothing = (None,) * others
        if router.scoring_func == "sigmoid":
            return by_score * scores * (1 - scores), *nothing
        if router.scoring_func == "sqrtsoftplus":
            return by_score / (2 * scores * (1 + np.exp(-logits))), *nothing
        return scores * (by_score - (by_score * scores).sum(-1, keepdims=True)), *nothing

    return factor * gates, backward


def sum_rest(place: Place, gates: Array) -> Result:
    first = place.attributes["first"]
    kept = (np.arange(gates.shape[-1]) >= first).astype(float)
    return (gates * kept).sum(-1), lambda grad: (grad[..., None] * kept,)


def _balance_slope(place: Place, chosen: Array) -> Array | float:
    """Of the load-balancing loss, coefficient x experts x sum of (share of tokens x mean probability), by each
    probability: [*mesh, 1, 1, expert]. Ranks whose gradients are added up although they hold the same share it."""
    coefficient = place.attributes.get("aux_loss_coef", 0.0)
    if not coefficient:
        return 0.0
    experts, tokens = chosen.shape[-1], place.graph.sizes["batch"] * place.graph.sizes["seq"]
    counts = chosen.sum((-3, -2), keepdims=True).astype(float)
    for dim in ("batch", "seq"):
        if over := place.over(dim):
            place.report("all_reduce", over, 2 * experts * place.summed_bytes)
            counts = all_reduce(counts, place.axes, over)
    copies = np.prod([size for axis, size in place.axes.items() if place.step.choice.get(axis) == REPLICATED])
    slope: Array = coefficient * experts * counts / tokens / tokens / copies
    return slope


def _slots(place: Place, gates: Array) -> Array:
    """[*mesh, batch, seq, expert, capacity]: 1 where a token has that slot; tokens queue in the order of the original
    sequence."""
    chosen, order = gates > 0, place.order
    slot = chosen[..., order.argsort(), :].cumsum(-2)[..., order, :] - 1
    result: Array = (chosen[..., None] & (slot[..., None] == np.arange(place.graph.sizes["capacity"]))).astype(float)
    return result


def dispatch(place: Place, x: Array, gates: Array) -> Result:
    slots = _slots(place, gates)
    if place.attributes.get("weighs"):
        weighed = slots * gates[..., None]
        return (
            np.einsum("...bsec,...bsd->...ebcd", weighed, x),
            lambda grad: (
                np.einsum("...bsec,...ebcd->...bsd", weighed, grad),
                np.einsum("...bsec,...ebcd,...bsd->...bse", slots, grad, x),
            ),
        )
    return (
        np.einsum("...bsec,...bsd->...ebcd", slots, x),
        lambda grad: (np.einsum("...bsec,...ebcd->...bsd", slots, grad), None),
    )


def _first(place: Place) -> Array:
    """[*mesh, 1, 1, 1]: 1 on the first of the ranks that hold partial sums, 0 on the others."""
    found: Array = (place.indices(PARTIAL, 1) == 0).astype(float)[..., None, None]
    return found


def combine(place: Place, answers: Array, gates: Array, *bias: Array) -> Result:
    """bias [expert, embed]: of each answer; the first of ranks that hold partial sums adds it."""
    slots = _slots(place, gates)
    weighs = place.attributes.get("weighs", True)
    weighed = slots * gates[..., None] if weighs else slots
    shares = weighed.sum(-1) * _first(place) if bias else weighed.sum(-1)

    def backward(grad: Array) -> Gradients:
        by_slot = np.einsum("...bsec,...bsd->...ebcd", weighed, grad)
        by_gate = np.einsum("...bsec,...ebcd,...bsd->...bse", slots, answers, grad)
        for one in bias:
            held = slots.sum(-1) * _first(place)
            by_gate = by_gate + held * np.einsum("...ed,...bsd->...bse", one, grad)
        by_bias = tuple(np.einsum("...bse,...bsd->...ed", shares, grad) for _ in bias)
        return by_slot, by_gate if weighs else None, *by_bias

    value = np.einsum("...bsec,...ebcd->...bsd", weighed, answers)
    for one in bias:
        value = value + np.einsum("...bse,...ed->...bsd", shares, one)
    return value, backward
