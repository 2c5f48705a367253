"""The choice of keys for sparse attention in numpy: every score at once, and a stable sort."""

from __future__ import annotations

import numpy as np

from tests.spmd.collectives import Array, all_gather
from tests.spmd.place import Place, Result, contract
from tests.spmd.rotation import rotated

QUERIES, KEYS = ("batch", "seq", "index_head", "index_dim"), ("batch", "seq", "index_dim")


def _normal_keys(place: Place, h: Array, wk: Array, norm: Array, norm_bias: Array) -> Array:
    made = contract((h, place.dims(0)), (wk, place.dims(3)), out=KEYS)
    centred = made - made.mean(-1, keepdims=True)
    normal = centred * (np.square(centred).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
    found: Array = normal * place.spread(norm, place.dims(4), KEYS) + place.spread(norm_bias, place.dims(5), KEYS)
    return found


def _scores(place: Place, h: Array, q: Array, k: Array, weights: Array) -> Array:
    """[*mesh, batch, seq, key] of queries and keys."""
    keys = ("batch", "key", "index_dim")
    of_heads = np.maximum(contract((q, QUERIES), (k, keys), out=(*QUERIES[:3], "key")), 0)
    weighed = contract((h, place.dims(0)), (weights, place.dims(6)), out=QUERIES[:3])
    return contract((of_heads, (*QUERIES[:3], "key")), (weighed, QUERIES[:3]), out=("batch", "seq", "key"))


def _gathered(place: Place, *some: Array) -> tuple[Array, ...]:
    """The whole sequence of each of some arrays [*mesh, batch, seq, width], gathered together."""
    if not (over := place.over("seq")):
        return some
    whole = tuple(all_gather(one, place.axes, over, 1) for one in some)
    element_bytes = place.graph.tensors[place.step.operator.inputs[0]].element_bytes
    place.report("all_gather", over, element_bytes * sum(int(np.prod(one.shape[len(place.axes) :])) for one in whole))
    return whole


def choose_keys(
    place: Place,
    h: Array,
    compressed: Array,
    wq_b: Array,
    wk: Array,
    norm: Array,
    norm_bias: Array,
    weights: Array,
    *more: Array,
) -> Result:
    """1 where a query sees a key, else 0."""
    others, read = iter(more), place.attributes
    if read.get("norms"):
        centred = compressed - compressed.mean(-1, keepdims=True)
        compressed = centred * (np.square(centred).mean(-1, keepdims=True) + read["eps"]) ** -0.5
        scale, bias = (place.spread(next(others), place.dims(7 + i), place.dims(1)) for i in range(2))
        compressed = compressed * scale + bias
    q = contract((compressed, place.dims(1)), (wq_b, place.dims(2)), out=QUERIES)
    if read.get("grows"):
        scale, bias = (place.spread(next(others), ("index_head",), QUERIES) for _ in range(2))
        logs = np.log(place.positions(h.shape[len(place.axes) + 1]) + 1.0)
        q = q * (scale * place.spread(logs, ("seq",), QUERIES) + bias)
    k, exponents = _normal_keys(place, h, wk, norm, norm_bias), next(others) if read.get("scales") else None
    if read["rotary_dim"]:
        k, _ = rotated(place, k, KEYS, exponents=exponents)
        q, _ = rotated(place, q, QUERIES, exponents=exponents)
    (k,) = _gathered(place, k)
    scores = _scores(place, h, q, k, weights)
    behind = place.order > place.positions(h.shape[len(place.axes) + 1])[..., None, :, None]
    order = np.argsort(np.where(behind, np.inf, -scores), -1, kind="stable")
    chosen = (np.argsort(order, -1) < place.attributes["top_k"]) & ~behind
    return chosen.astype(float), lambda grad: (None,) * len(place.step.operator.inputs)


def choose_pools(place: Place, h: Array, compressed: Array, *weights: Array) -> Result:
    """1 where a query sees a key, else 0."""
    wq_b, wk, norm, norm_bias, weights_proj, gate, bias = weights
    q = contract((compressed, place.dims(1)), (wq_b, place.dims(2)), out=QUERIES)
    gates = contract((h, place.dims(0)), (gate, place.dims(7)), out=KEYS)
    k, gates = _gathered(place, _normal_keys(place, h, wk, norm, norm_bias), gates)
    mesh, rate = len(place.axes), place.attributes["rate"]
    length, pools = k.shape[mesh + 1], k.shape[mesh + 1] // rate
    k, gates = (
        np.take(x, range(pools * rate), mesh + 1).reshape(*x.shape[: mesh + 1], pools, rate, x.shape[-1])
        for x in (k, gates)
    )
    exponentials = np.exp(gates + bias.reshape(*bias.shape[:mesh], 1, 1, *bias.shape[mesh:]))
    k = (k * exponentials).sum(-2) / exponentials.sum(-2)
    return _of_pools(place, _scores(place, h, q, k, weights_proj), h.shape[mesh + 1], length)


def choose_means(place: Place, h: Array, q_proj: Array, k_proj: Array, q_norm: Array, k_norm: Array) -> Result:
    """1 where a query sees a key, else 0."""
    mesh, rate, width = len(place.axes), place.attributes["rate"], q_proj.shape[-2]

    def turned(x: Array, norm: Array, dims: tuple[str, ...], every: int | None = None) -> Array:
        normal = x * (np.square(x).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
        made, _ = rotated(place, normal * (1 + place.spread(norm, ("index_dim",), dims)), dims, every)
        return made

    q = turned(contract((h, place.dims(0)), (q_proj, place.dims(1)), out=QUERIES), q_norm, QUERIES)
    (k,) = _gathered(place, contract((h, place.dims(0)), (k_proj, place.dims(2)), out=KEYS))
    pools = k.shape[mesh + 1] // rate
    means = np.take(k, range(pools * rate), mesh + 1).reshape(*k.shape[: mesh + 1], pools, rate, width).mean(-2)
    means = turned(means, k_norm, ("batch", "pooled_key", "index_dim"), rate)
    scores = contract((q, QUERIES), (means, ("batch", "pool", "index_dim")), out=(*QUERIES[:3], "pool"))
    return _of_pools(place, np.maximum(scores, 0).sum(-2) / np.sqrt(width), h.shape[mesh + 1], k.shape[mesh + 1])


def _of_pools(place: Place, scores: Array, queries: int, length: int) -> Result:
    """1 where a query sees a key, else 0. scores: [*mesh, batch, seq, pool]. queries: tokens of a rank. length: of the
    sequence."""
    rate, pools = place.attributes["rate"], scores.shape[-1]
    positions = place.positions(queries)[..., None, :, None]
    behind = np.arange(pools) >= (positions + 1) // rate
    order = np.argsort(np.where(behind, np.inf, -scores), -1, kind="stable")
    chosen = (np.argsort(order, -1) < place.attributes["top_k"] // rate) & ~behind
    key = np.arange(length)
    own = (key >= (positions + 1) // rate * rate) & (key <= positions)
    seen = np.zeros((*scores.shape[:-1], length), dtype=bool)
    seen[..., : pools * rate] = np.repeat(chosen, rate, -1)
    return (seen | own).astype(float), lambda grad: (None,) * len(place.step.operator.inputs)


def choose_blocks(place: Place, h: Array, q_proj: Array, k_proj: Array, q_norm: Array, k_norm: Array) -> Result:
    """1 where the queries of a key-value head see a block of keys, else 0."""
    queries = ("batch", "seq", "kvhead", "index_dim")
    block, top_k, local = (place.attributes[name] for name in ("block", "top_k", "local"))

    def made(weights: Array, at: int, dims: tuple[str, ...], norm: Array) -> Array:
        x = contract((h, place.dims(0)), (weights, place.dims(at)), out=dims)
        normal = x * (np.square(x).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
        turned, _ = rotated(place, normal * (1 + place.spread(norm, ("index_dim",), dims)), dims)
        return turned

    q = made(q_proj, 1, queries, q_norm)
    (k,) = _gathered(place, made(k_proj, 2, KEYS, k_norm))
    mesh = len(place.axes)
    length = k.shape[mesh + 1]
    scores = contract((q, queries), (k, ("batch", "key", "index_dim")), out=(*queries[:3], "key"))
    here = place.positions(h.shape[mesh + 1])[..., None, :, None, None]
    scores = np.where(np.arange(length) > here, -np.inf, scores)
    starts = range(0, length, block)
    best = np.stack([scores[..., start : start + block].max(-1) for start in starts], -1)
    blocks, own = np.arange(len(starts)), here // block
    best = np.where((blocks <= own) & (blocks > own - local), np.inf, best)
    order = np.argsort(-best, -1, kind="stable")
    chosen = (np.argsort(order, -1) < top_k) & (blocks <= own)
    return chosen.astype(float), lambda grad: (None,) * len(place.step.operator.inputs)
