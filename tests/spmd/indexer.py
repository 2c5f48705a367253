"""The choice of keys for sparse attention in numpy: every score at once, and a stable sort."""

from __future__ import annotations

import numpy as np

from tests.spmd.collectives import Array, all_gather
from tests.spmd.place import Place, Result, contract
from tests.spmd.rotation import rotated

QUERIES, KEYS = ("batch", "seq", "index_head", "index_dim"), ("batch", "seq", "index_dim")


def choose_keys(
    place: Place, h: Array, compressed: Array, wq_b: Array, wk: Array, norm: Array, norm_bias: Array, weights: Array
) -> Result:
    """1 where a query sees a key, else 0."""
    made = contract((h, place.dims(0)), (wk, place.dims(3)), out=KEYS)
    centred = made - made.mean(-1, keepdims=True)
    normal = centred * (np.square(centred).mean(-1, keepdims=True) + place.attributes["eps"]) ** -0.5
    normal = normal * place.spread(norm, place.dims(4), KEYS) + place.spread(norm_bias, place.dims(5), KEYS)
    k, _ = rotated(place, normal, KEYS)
    q, _ = rotated(place, contract((compressed, place.dims(1)), (wq_b, place.dims(2)), out=QUERIES), QUERIES)
    if over := place.over("seq"):
        k = all_gather(k, place.axes, over, 1)
        element_bytes = place.graph.tensors[place.step.operator.inputs[0]].element_bytes
        place.report("all_gather", over, element_bytes * int(np.prod(k.shape[len(place.axes) :])))
    keys = ("batch", "key", "index_dim")
    of_heads = np.maximum(contract((q, QUERIES), (k, keys), out=(*QUERIES[:3], "key")), 0)
    weighed = contract((h, place.dims(0)), (weights, place.dims(6)), out=QUERIES[:3])
    scores = contract((of_heads, (*QUERIES[:3], "key")), (weighed, QUERIES[:3]), out=("batch", "seq", "key"))
    behind = place.order > place.positions(h.shape[len(place.axes) + 1])[..., None, :, None]
    order = np.argsort(np.where(behind, np.inf, -scores), -1, kind="stable")
    chosen = (np.argsort(order, -1) < place.attributes["top_k"]) & ~behind
    return chosen.astype(float), lambda grad: (None,) * len(place.step.operator.inputs)
