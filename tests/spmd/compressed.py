"""Compressed attention in numpy: every score at once, with gradients; and the choice of entries, by a stable sort."""

from __future__ import annotations

import numpy as np

from tests.spmd.collectives import Array, all_gather
from tests.spmd.place import Gradients, Place, Result, contract
from tests.spmd.rotation import rotated


def _slots(place: Place, x: Array, nothing: float, has_series: bool) -> Array:
    """[*mesh, batch, entry, slot, width] of x [*mesh, batch, seq, (series,) width]. nothing: what stands before the
    first piece."""
    mesh, rate = len(place.axes), place.attributes["rate"]
    whole = x.shape[mesh + 1] // rate * rate
    pieces = np.take(x, range(whole), mesh + 1)
    pieces = pieces.reshape(*x.shape[: mesh + 1], whole // rate, rate, *x.shape[mesh + 2 :])
    if not has_series:
        return pieces
    shifted = np.roll(pieces[..., 0, :], 1, mesh + 1)
    np.moveaxis(shifted, mesh + 1, 0)[0] = nothing
    return np.concatenate((shifted, pieces[..., 1, :]), mesh + 2)


def _with_bias(place: Place, gates: Array, bias: Array) -> Array:
    """gates [*mesh, batch, seq, ...] plus the bias [*mesh, rate, ...] of each token's place in its piece."""
    mesh = len(place.axes)
    places = np.arange(gates.shape[mesh + 1]) % place.attributes["rate"]
    found: Array = gates + np.take(bias.reshape(*bias.shape[:mesh], 1, *bias.shape[mesh:]), places, mesh + 1)
    return found


def compress(place: Place, values: Array, gates: Array, bias: Array) -> Result:
    has_series, rate = "series" in place.dims(0), place.attributes["rate"]
    mesh = len(place.axes)
    whole = place.graph.sizes["seq"] // rate * rate

    def unslotted(grad: Array, like: Array) -> Array:
        """The gradient of x by that of its slots."""
        if has_series:
            shifted, own = np.split(grad, 2, mesh + 2)
            earlier = np.roll(shifted, -1, mesh + 1)
            np.moveaxis(earlier, mesh + 1, 0)[-1] = 0
            grad = np.stack((earlier, own), -2)
        found = np.zeros_like(like)
        flat = grad.reshape(*like.shape[: mesh + 1], whole, *like.shape[mesh + 2 :])
        np.moveaxis(found, mesh + 1, 0)[:whole] = np.moveaxis(flat, mesh + 1, 0)
        return found

    biased = _with_bias(place, gates, bias)
    v, z = (_slots(place, x, nothing, has_series) for x, nothing in ((values, 0.0), (biased, -np.inf)))
    weights = np.exp(z - z.max(mesh + 2, keepdims=True))
    weights = weights / weights.sum(mesh + 2, keepdims=True)

    def backward(grad: Array) -> Gradients:
        of_slots = np.expand_dims(grad, mesh + 2)
        to_weights = of_slots * v
        to_z = weights * (to_weights - (to_weights * weights).sum(mesh + 2, keepdims=True))
        to_gates = unslotted(to_z, gates)
        pieces = np.take(to_gates, range(whole), mesh + 1)
        pieces = pieces.reshape(*gates.shape[: mesh + 1], whole // rate, rate, *gates.shape[mesh + 2 :])
        return unslotted(of_slots * weights, values), to_gates, pieces.sum((mesh, mesh + 1))

    return (weights * v).sum(mesh + 2), backward


def compressed_attention(place: Place, q: Array, keys: Array, sinks: Array, *more: Array) -> Result:
    rows, heads = ("batch", "seq", "kvhead", "group"), ("kvhead", "group")
    dims, width = place.dims(0), place.dims(0)[-1]
    columns = np.concatenate((keys, *more[:1]), -2)
    shared = ("batch", "column", width)
    mesh, count = len(place.axes), more[0].shape[-2] if more else 0
    scale = place.graph.sizes[width] ** -0.5
    query = place.positions(q.shape[mesh + 1])[..., None]
    key, entry = np.arange(keys.shape[-2]), np.arange(count)
    window = (key <= query) & (key > query - place.attributes["sliding_window"])
    seen = np.concatenate((window, entry < (query + 1) // place.attributes.get("rate", 1)), -1)[..., None, :, :]
    if len(more) > 1:
        chosen = np.concatenate((np.ones((*more[1].shape[:-1], keys.shape[-2])), more[1]), -1)
        seen = seen & (chosen > 0)
    seen = seen[..., None, None, :]  # heads
    scores = contract((q, dims), (columns, shared), out=(*rows, "column")) * scale
    masked = np.where(seen, scores, -np.inf)
    sink = place.spread(sinks, heads, (*rows, "one"))
    top = np.maximum(masked.max(-1, keepdims=True), sink)
    exponentials, of_sink = np.exp(masked - top), np.exp(sink - top)
    total = exponentials.sum(-1, keepdims=True) + of_sink
    weights, lost = exponentials / total, of_sink / total
    valid = place.attributes.get("valid_group")
    full = (
        np.ones(()) if valid is None else (place.indices("group", q.shape[-2]) < valid)[..., None, None, None, :, None]
    )
    value = contract((weights, (*rows, "column")), (columns, shared), out=dims) * full

    def backward(grad: Array) -> Gradients:
        grad = grad * full
        to_weights = contract((grad, dims), (columns, shared), out=(*rows, "column"))
        along = (to_weights * weights).sum(-1, keepdims=True)
        to_scores = weights * (to_weights - along) * scale
        to_columns = contract((weights, (*rows, "column")), (grad, dims), out=shared)
        to_columns = to_columns + contract((to_scores, (*rows, "column")), (q, dims), out=shared)
        to_q = contract((to_scores, (*rows, "column")), (columns, shared), out=dims)
        to_keys, to_entries = np.split(to_columns, [keys.shape[-2]], -2)
        to_sinks = -(lost * along)[..., 0].sum((mesh, mesh + 1))
        return to_q, to_keys, to_sinks, *((to_entries,) if more else ()), *((None,) * len(more[1:]))

    return value, backward


def choose_entries(place: Place, h: Array, compressed: Array, *weights: Array) -> Result:
    """1 where a query sees an entry, else 0."""
    wq_b, weights_proj, wkv, wgate, bias, norm = weights
    queries, made_dims = ("batch", "seq", "index_head", "index_dim"), ("batch", "seq", "series", "index_dim")
    entry, rate = place.output_dims[-1], place.attributes["rate"]
    both = [contract((h, place.dims(0)), (one, place.dims(4)), out=made_dims) for one in (wkv, wgate)]
    if over := place.over("seq"):
        both = [all_gather(one, place.axes, over, 1) for one in both]
        element_bytes = place.graph.tensors[place.step.operator.inputs[0]].element_bytes
        place.report("all_gather", over, 2 * element_bytes * int(np.prod(both[0].shape[len(place.axes) :])))
    mesh = len(place.axes)
    slots = [_slots(place, both[0], 0.0, True), _slots(place, _with_bias(place, both[1], bias), -np.inf, True)]
    exponentials = np.exp(slots[1] - slots[1].max(mesh + 2, keepdims=True))
    made = (slots[0] * exponentials).sum(mesh + 2) / exponentials.sum(mesh + 2)
    keys = ("batch", entry, "index_dim")
    normal = made * (np.square(made).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
    k, _ = rotated(place, normal * place.spread(norm, ("index_dim",), keys), keys, every=rate)
    q, _ = rotated(place, contract((compressed, place.dims(1)), (wq_b, place.dims(2)), out=queries), queries)
    of_heads = np.maximum(contract((q, queries), (k, keys), out=(*queries[:3], entry)), 0)
    weighed = contract((h, place.dims(0)), (weights_proj, place.dims(3)), out=queries[:3])
    scores = contract((of_heads, (*queries[:3], entry)), (weighed, queries[:3]), out=("batch", "seq", entry))
    ready = (place.positions(h.shape[mesh + 1]) + 1) // rate
    behind = np.arange(scores.shape[-1]) >= ready[..., None, :, None]
    order = np.argsort(np.where(behind, np.inf, -scores), -1, kind="stable")
    chosen = (np.argsort(order, -1) < place.attributes["top_k"]) & ~behind
    return chosen.astype(float), lambda grad: (None,) * len(place.step.operator.inputs)
