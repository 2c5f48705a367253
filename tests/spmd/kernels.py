"""Every operator kind in numpy: a kernel returns the output, and a function from its gradient to those of the inputs.

Arrays and gradients are as place.py says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np

from tests.spmd.collectives import Array, all_reduce, all_to_all, ring_gather, ring_reduce
from tests.spmd.compressed import choose_entries, compress, compressed_attention
from tests.spmd.dropping import mask
from tests.spmd.experts import combine, dispatch, sum_rest, top_k_gate
from tests.spmd.indexer import choose_blocks, choose_keys, choose_means, choose_pools
from tests.spmd.ngrams import gate_streams, hash_ngrams
from tests.spmd.place import Gradients, Place, Report, Result, contract
from tests.spmd.pointwise import pointwise
from tests.spmd.recurrences import (
    causal_conv,
    gated_delta_rule,
    lightning_attention,
    selective_scan,
    state_space_scan,
)
from tests.spmd.rotation import rotated
from tests.spmd.streams import collapse_streams, expand_streams, mean_streams, repeat_streams, stream_weights


def run(place: Place, inputs: tuple[Array, ...]) -> Result:
    return KERNELS[place.step.operator.kind](place, *inputs)


def _einsum(place: Place, x: Array, w: Array) -> Result:
    left, right, out = place.dims(0), place.dims(1), place.output_dims

    def gradient(grad: Array, other: Array, other_dims: tuple[str, ...], like: Array, dims: tuple[str, ...]) -> Array:
        if set(dims) <= {*out, *other_dims}:
            return contract((grad, out), (other, other_dims), out=dims)
        ones = np.ones_like(like)  # a dim that only this operand has was summed: its gradient is spread over it
        return contract((grad, out), (other, other_dims), (ones, dims), out=dims)

    def backward(grad: Array) -> Gradients:
        return gradient(grad, w, right, x, left), gradient(grad, x, left, w, right)

    return contract((x, left), (w, right), out=out), backward


def _sigmoid(x: Array) -> Array:
    result: Array = (1 + np.tanh(x / 2)) / 2
    return result


def _elementwise(place: Place, *inputs: Array) -> Result:
    dims = place.output_dims
    have = [place.dims(index) for index in range(len(inputs))]
    spread = [place.spread(x, own, dims) for x, own in zip(inputs, have, strict=True)]
    function = str(place.attributes["function"])
    expression = place.attributes.get("expression")
    if expression is not None:
        value, slopes = pointwise(expression, tuple(spread))
    elif function in ("scale", "add"):
        value, slopes = _linear(place.attributes, *spread)
    else:
        value, slopes = ELEMENTWISE[function](*spread)

    def backward(grad: Array) -> Gradients:
        found = []
        for slope, x, own in zip(slopes, inputs, have, strict=True):
            lacking = tuple(len(place.axes) + i for i, dim in enumerate(dims) if dim not in own)
            found.append((grad * slope).sum(lacking).reshape(x.shape))
        return tuple(found)

    return value, backward


def _linear(attributes: Mapping[str, Any], *inputs: Array) -> tuple[Array, tuple[Any, ...]]:
    """The first input times its factor, plus the others times alpha."""
    factors = (attributes.get("factor", 1.0), *[attributes.get("alpha", 1.0)] * (len(inputs) - 1))
    terms = [factor * x for factor, x in zip(factors, inputs, strict=True)]
    return sum(terms[1:], terms[0]), factors


def _silu_mul(gate: Array, up: Array) -> tuple[Array, tuple[Any, ...]]:
    sigmoid = _sigmoid(gate)
    return gate * sigmoid * up, (up * sigmoid * (1 + gate * (1 - sigmoid)), gate * sigmoid)


def _gelu(x: Array) -> tuple[Array, tuple[Any, ...]]:
    """The tanh approximation."""
    root = (2 / np.pi) ** 0.5
    tanh = np.tanh(root * (x + 0.044715 * x**3))
    return x * (1 + tanh) / 2, ((1 + tanh) / 2 + x / 2 * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2),)


def _gelu_erf(x: Array) -> tuple[Array, tuple[Any, ...]]:
    below = (1 + np.vectorize(erf)(x / 2**0.5)) / 2
    return x * below, (below + x * np.exp(-(x**2) / 2) / (2 * np.pi) ** 0.5,)


def _sigmoid_mul(x: Array, gate: Array) -> tuple[Array, tuple[Any, ...]]:
    sigmoid = _sigmoid(gate)
    return x * sigmoid, (sigmoid, x * sigmoid * (1 - sigmoid))


def _scaled_by(x: Array, number: Array) -> tuple[Array, tuple[Any, ...]]:
    return x * number, (number, x)


ELEMENTWISE: dict[str, Callable[..., tuple[Array, tuple[Any, ...]]]] = {
    "silu_mul": _silu_mul,
    "gelu": _gelu,
    "gelu_erf": _gelu_erf,
    "sigmoid_mul": _sigmoid_mul,
    "scaled_by": _scaled_by,
}
"""Value, and the derivative by each input."""


def _norm(place: Place, x: Array, weight: Array | None = None, *bias: Array) -> Result:
    if weight is None:
        scale = (np.square(x).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
        return x * scale, lambda grad: (scale * (grad - x * scale**2 * (grad * x).mean(-1, keepdims=True)),)
    if place.attributes.get("over"):
        return _norm_over_several(place, x, weight)
    rows = tuple(range(len(place.axes), x.ndim - len(place.dims(1))))
    centred = x - x.mean(-1, keepdims=True) if place.attributes["function"] == "layer" else x
    scale = (np.square(centred).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
    normal = centred * scale
    affine = [place.spread(one, place.dims(1), place.output_dims) for one in (weight, *bias)]
    affine[0] = affine[0] + bool(place.attributes.get("unit_offset"))

    def backward(grad: Array) -> Gradients:
        weighted = grad * affine[0]
        grad_x = weighted - normal * (weighted * normal).mean(-1, keepdims=True)
        if place.attributes["function"] == "layer":
            grad_x = grad_x - weighted.mean(-1, keepdims=True)
        return (grad_x * scale, (grad * normal).sum(rows), *(grad.sum(rows) for _ in bias))

    return normal * affine[0] + sum(affine[1:]), backward


def _norm_over_several(place: Place, x: Array, weight: Array) -> Result:
    """An RMS norm over dims that ranks may share, all but the last of them."""
    over, width = place.attributes["over"], place.attributes["width"]
    last = tuple(range(x.ndim - len(over), x.ndim))
    rows = tuple(range(len(place.axes), x.ndim - len(place.dims(1))))

    def total(values: Array, report: Report) -> Array:
        found: Array = values.sum(last, keepdims=True)
        for dim in over[:-1]:
            if axes := place.over(dim):
                report("all_reduce", axes, place.summed_bytes * int(np.prod(x.shape[len(place.axes) : -len(over)])))
                found = all_reduce(found, place.axes, axes, "sum")
        return found

    scale = (total(np.square(x), place.report) / width + place.attributes["eps"]) ** -0.5
    normal, factors = x * scale, place.spread(weight, place.dims(1), place.output_dims)

    def backward(grad: Array) -> Gradients:
        weighted = grad * factors
        grad_x = (weighted - normal * total(weighted * normal, place.report_backward) / width) * scale
        return grad_x, (grad * normal).sum(rows)

    return normal * factors, backward


def _slice(place: Place, x: Array) -> Result:
    first, length = place.attributes["first"], place.graph.sizes[place.output_dims[-1]]

    def backward(grad: Array) -> Gradients:
        whole = np.zeros_like(x)
        whole[..., first : first + length] = grad
        return (whole,)

    return x[..., first : first + length], backward


def _concat(place: Place, x: Array, y: Array) -> Result:
    dims, mesh = place.output_dims, len(place.axes)
    spread = place.spread(y, (*place.dims(1)[:-1], dims[-1]), dims)
    repeated = np.broadcast_to(spread, (*x.shape[:-1], y.shape[-1]))
    lacking = tuple(mesh + i for i, dim in enumerate(dims[:-1]) if dim not in place.dims(1))

    def backward(grad: Array) -> Gradients:
        return grad[..., : x.shape[-1]], grad[..., x.shape[-1] :].sum(lacking).reshape(y.shape)

    return np.concatenate((x, repeated), -1), backward


def _scaled_rope(place: Place, x: Array, exponents: Array) -> Result:
    value, backward = rotated(place, x, place.output_dims, exponents=exponents)
    return value, lambda grad: (*backward(grad), None)


def _log_scale(place: Place, x: Array, scale: Array, bias: Array) -> Result:
    dims, mesh = place.output_dims, len(place.axes)
    logs = place.spread(np.log(place.positions(x.shape[mesh + dims.index("seq")]) + 1.0), ("seq",), dims)
    factors = place.spread(scale, place.dims(1), dims) * logs + place.spread(bias, place.dims(2), dims)
    lacking = tuple(mesh + i for i, dim in enumerate(dims) if dim not in place.dims(1))

    def backward(grad: Array) -> Gradients:
        along = grad * x
        return grad * factors, (along * logs).sum(lacking), along.sum(lacking)

    return x * factors, backward


def _position_scale(place: Place, x: Array) -> Result:
    dims = place.output_dims
    places = place.positions(x.shape[len(place.axes) + dims.index("seq")])
    steps = np.floor((places + place.attributes.get("first", 1)) / place.attributes["floor_scale"])
    factors = place.spread(1 + place.attributes["attn_scale"] * np.log1p(steps), ("seq",), dims)
    return x * factors, lambda grad: (grad * factors,)


def _attention(place: Place, q: Array, k: Array, v: Array, *sequences: Array) -> Result:
    """sequences: their keys, where probabilities are dropped; not where heads are exchanged."""
    over, kind = place.over("seq"), place.attributes.get("context_parallel", "all_gather")
    assert not (over and kind != "all_gather" and sequences), place.step
    if over and kind == "ulysses":
        return _exchanging(place, q, k, v, over)
    query_at = place.positions(q.shape[len(place.axes) + place.dims(0).index("seq")])
    if over and kind != "all_gather":
        return _in_a_ring(place, q, k, v, over, query_at)
    return _attend(place, q, k, v, query_at, *sequences)


def _in_a_ring(place: Place, q: Array, k: Array, v: Array, over: tuple[str, ...], query_at: Array) -> Result:
    """Keys and values travel together, so do their gradients, in FP32 at least."""
    dim, count = place.dims(1).index("seq"), int(np.prod([place.axes[axis] for axis in over]))
    keys, values = (ring_gather(x, place.axes, over, dim) for x in (k, v))
    elements = (k.size + v.size) // int(np.prod(tuple(place.axes.values())))
    element_bytes = place.graph.tensors[place.step.operator.inputs[1]].element_bytes
    value, attended = _attend(place, q, keys, values, query_at)
    for _ in range(count - 1):
        place.report("send_recv", over, element_bytes * elements)

    def backward(grad: Array) -> Gradients:
        by_query, *others = attended(grad)
        for _ in range(count - 1):
            place.report_backward("send_recv", over, element_bytes * elements)
        for _ in range(count):
            place.report_backward("send_recv", over, place.summed_bytes * elements)
        return (by_query, *(ring_reduce(x, place.axes, over, dim) for x in others if x is not None))

    return value, backward


def _exchanging(place: Place, q: Array, k: Array, v: Array, over: tuple[str, ...]) -> Result:
    """Ulysses: the whole sequence for a part of the heads."""
    query, key, values, out = place.dims(0), place.dims(1), place.dims(2), place.output_dims
    ranks, heads_dim = int(np.prod(tuple(place.axes.values()))), key[2]

    def exchange(x: Array, dims: tuple[str, ...], gather: str, split: str, report: Report) -> Array:
        element_bytes = place.graph.tensors[place.step.operator.inputs[0]].element_bytes
        report("all_to_all", over, x.size // ranks * element_bytes)
        return all_to_all(x, place.axes, over, dims.index(gather), dims.index(split))

    heads = [exchange(x, dims, "seq", heads_dim, place.report) for x, dims in ((q, query), (k, key), (v, values))]
    everywhere = np.broadcast_to(place.order, (*place.axes.values(), len(place.order)))
    value, attended = _attend(place, heads[0], heads[1], heads[2], everywhere)

    def backward(grad: Array) -> Gradients:
        by_heads = attended(exchange(grad, out, "seq", heads_dim, place.report_backward))
        return tuple(
            exchange(x, dims, heads_dim, "seq", place.report_backward)
            for x, dims in zip(by_heads, (query, key, values), strict=True)
            if x is not None
        )

    return exchange(value, out, heads_dim, "seq", place.report), backward


def _attend(place: Place, q: Array, k: Array, v: Array, positions: Array, *sequences: Array) -> Result:
    """positions: of the queries, [*mesh, length]; keys and values are whole. The mask of chosen keys, and then sinks,
    come before sequences."""
    chosen, sequences = (sequences[:1], sequences[1:]) if place.attributes.get("chosen") else ((), sequences)
    sinks, sequences = (sequences[:1], sequences[1:]) if place.attributes.get("sinks") else ((), sequences)
    qd, kd, od = place.dims(0), place.dims(1), place.output_dims
    keys, values = (tuple("key" if dim == "seq" else dim for dim in dims) for dims in (kd, place.dims(2)))
    grid = (qd[0], *qd[2:4], qd[1], "key")
    query_at, key_at = positions[..., :, None], place.order
    seen = key_at <= query_at
    if place.attributes["sliding_window"] is not None:
        seen = seen & (key_at > query_at - place.attributes["sliding_window"])
    if (chunk := place.attributes.get("chunk")) is not None:
        seen = seen & (key_at >= query_at // chunk * chunk)
    scale = place.attributes.get("scale", q.shape[-1] ** -0.5)
    raw, slope = contract((q, qd), (k, keys), out=grid) * scale, scale
    if (cap := place.attributes.get("softcap")) is not None:
        raw = cap * np.tanh(raw / cap)
        slope = scale * (1 - (raw / cap) ** 2)
    seen = place.spread(seen, ("seq", "key"), grid)
    for one in chosen:
        dims = place.dims(3)
        if (block := place.attributes.get("chosen_block")) is not None:
            one = np.take(one, np.arange(len(key_at)) // block, -1).swapaxes(-3, -2)
            dims = (dims[0], dims[2], dims[1], "key")
        seen = seen & (place.spread(one, dims, grid) > 0)
    scores = np.where(seen, raw, -1e30)
    top = scores.max(-1, keepdims=True)
    lost = [place.spread(one, place.dims(3 + len(chosen)), grid) for one in sinks]
    for one in lost:
        top = np.maximum(top, one)
    weights, lost = np.exp(scores - top), [np.exp(one - top) for one in lost]
    total = weights.sum(-1, keepdims=True) + sum(lost)
    weights, lost = weights / total, [one / total for one in lost]
    kept: Any = 1.0
    for one in sequences:
        at = dict(zip(grid, weights.shape[len(place.axes) :], strict=True))
        heads = [place.indices(dim, at[dim]) for dim in qd[2:4]]
        kept = _kept(place, one, [*heads, positions, np.broadcast_to(key_at, (*positions.shape[:-1], len(key_at)))])

    def backward(grad: Array) -> Gradients:
        by_weight = contract((grad, od), (v, values), out=grid) * kept
        along = (by_weight * weights).sum(-1, keepdims=True)
        by_score = weights * (by_weight - along) * slope
        by_sink = [(-along * one)[..., 0] for one in lost]
        return (
            contract((by_score, grid), (k, keys), out=qd),
            contract((by_score, grid), (q, qd), out=keys),
            contract((weights * kept, grid), (grad, od), out=values),
            *(None for _ in chosen),
            *(one.sum((len(place.axes), -1)) for one in by_sink),
            *(None for _ in sequences),
        )

    return contract((weights * kept, grid), (v, values), out=od), backward


def _embedding(place: Place, ids: Array, table: Array) -> Result:
    """ids [*mesh, batch, seq, perhaps heads]; table [*mesh, dims of rows, the first of which may be split, width]."""
    mesh, dims = table.shape[: len(place.axes)], place.dims(0)
    of_rows = table.reshape(*mesh, -1, table.shape[-1])
    each = of_rows.shape[len(mesh)] // table.shape[len(mesh)]
    parts = place.indices(place.dims(1)[0], table.shape[len(mesh)])
    rows = (parts[..., None] * each + np.arange(each)).reshape(*mesh, -1)
    picked = (ids[..., None] == place.spread(rows, ("row",), (*dims, "row"))).astype(float)
    rows_dims, out = ("row", "width"), (*dims, "width")

    def backward(grad: Array) -> Gradients:
        return None, contract((picked, (*dims, "row")), (grad, out), out=rows_dims).reshape(table.shape)

    return contract((picked, (*dims, "row")), (of_rows, rows_dims), out=out), backward


def _position_embedding(place: Place, x: Array, table: Array) -> Result:
    at = place.positions(x.shape[len(place.axes) + 1])
    picked = (at[..., None] == np.arange(table.shape[len(place.axes)])).astype(float)

    def backward(grad: Array) -> Gradients:
        return grad, np.einsum("...sp,...bse->...pe", picked, grad)

    return x + np.einsum("...sp,...pe->...se", picked, table)[..., None, :, :], backward


def _cross_entropy(place: Place, logits: Array, labels: Array, other: Array | None = None) -> Result:
    over = place.over("vocab")
    columns = place.indices("vocab", logits.shape[-1])[..., None, None, :]
    scores = np.where(columns < place.attributes["valid_vocab"], logits, -1e30)
    tokens = place.graph.sizes["batch"] * place.graph.sizes["seq"]
    learned = labels >= 0
    rows, weight = int(np.prod(labels.shape[len(place.axes) :])), place.attributes.get("weight", 1.0)

    def across(x: Array, reduction: str, count: int) -> Array:
        if not over:
            return x
        place.report("all_reduce", over, count * place.summed_bytes)
        return all_reduce(x, place.axes, over, reduction)

    top = across(scores.max(-1), "max", rows)
    exponentials = np.exp(scores - top[..., None])
    picked = (columns == labels[..., None]).astype(float)
    sums = np.stack((exponentials.sum(-1), ((scores - top[..., None]) * picked).sum(-1)), -1)
    total, label = np.moveaxis(across(sums, "sum", 2 * rows), -1, 0)

    def backward(grad: Array) -> Gradients:
        wrong = (exponentials / total[..., None] - picked) * learned[..., None]
        of_logits = weight * wrong * grad[..., None, None, None] / tokens
        return (of_logits, None) if other is None else (of_logits, None, grad)

    loss = weight * ((np.log(total) - label) * learned).sum((-1, -2)) / tokens
    return loss if other is None else other + loss, backward


def _linear_cross_entropy(place: Place, x: Array, w: Array, labels: Array, *other: Array) -> Result:
    """All chunks at once: how many there are changes no number."""
    assert "expression" not in place.attributes
    loss, of_logits = _cross_entropy(place, np.einsum("...bse,...ve->...bsv", x, w), labels, *other)

    def backward(grad: Array) -> Gradients:
        wrong, *others = of_logits(grad)
        assert wrong is not None
        of_x, of_w = np.einsum("...bsv,...ve->...bse", wrong, w), np.einsum("...bsv,...bse->...ve", wrong, x)
        return (of_x, of_w, *others)

    return loss, backward


def _dropout(place: Place, x: Array, keys: Array) -> Result:
    dims = place.output_dims[1:]
    lengths = x.shape[len(place.axes) + 1 :]
    places = [
        place.positions(length) if dim == "seq" else place.indices(dim, length)
        for dim, length in zip(dims, lengths, strict=True)
    ]
    kept = _kept(place, keys, places)
    return x * kept, lambda grad: (grad * kept, None)


def _kept(place: Place, sequences: Array, places: list[Array]) -> Array:
    """Zero where an element is dropped, else the factor of what is kept."""
    rate = place.attributes["rate" if place.step.operator.kind == "dropout" else "dropout"]
    found: Array = mask(sequences.astype(np.int64), place.step.operator.name, places, rate) / (1 - rate)
    return found


KERNELS: dict[str, Callable[..., Result]] = {
    "einsum": _einsum,
    "elementwise": _elementwise,
    "norm": _norm,
    "rope": lambda place, x: rotated(place, x, place.output_dims),
    "scaled_rope": _scaled_rope,
    "log_scale": _log_scale,
    "slice": _slice,
    "concat": _concat,
    "dropout": _dropout,
    "attention": _attention,
    "choose_keys": choose_keys,
    "choose_pools": choose_pools,
    "choose_means": choose_means,
    "choose_blocks": choose_blocks,
    "compress": compress,
    "compressed_attention": compressed_attention,
    "choose_entries": choose_entries,
    "embedding": _embedding,
    "position_embedding": _position_embedding,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "top_k_gate": top_k_gate,
    "sum_rest": sum_rest,
    "dispatch": dispatch,
    "combine": combine,
    "position_scale": _position_scale,
    "causal_conv": causal_conv,
    "gated_delta_rule": gated_delta_rule,
    "state_space_scan": state_space_scan,
    "selective_scan": selective_scan,
    "lightning_attention": lightning_attention,
    "repeat_streams": repeat_streams,
    "mean_streams": mean_streams,
    "stream_weights": stream_weights,
    "collapse_streams": collapse_streams,
    "expand_streams": expand_streams,
    "hash_ngrams": hash_ngrams,
    "gate_streams": gate_streams,
}
