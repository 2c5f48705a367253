"""Embeddings of n-grams in numpy: the rows of a table that tokens have, token by token, and the gate of streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.spmd.collectives import Array
from tests.spmd.place import Gradients, Place, Result

LEAST_PRODUCT = 1e-6


def hash_ngrams(place: Place, ids: Array, *starts: Array) -> Result:
    factors, rows, eos = (place.attributes[name] for name in ("factors", "rows", "eos"))
    each = len(rows) // (len(factors) - 1)
    found = np.zeros((*ids.shape, len(rows)))
    for at in np.ndindex(ids.shape[:-1]):
        tokens = ids[at][np.argsort(place.order)].astype(int)
        for token in range(len(tokens)):
            first = int(starts[0][at][token]) if starts else 0
            number = int(tokens[token]) * factors[0]
            over = False
            for apart in range(1, len(factors)):
                over = over or token - apart < first or tokens[token - apart] == eos
                seen = eos if over else int(tokens[token - apart])
                number ^= seen * factors[apart]
                for head in range((apart - 1) * each, apart * each):
                    (index,) = np.flatnonzero(place.order == token)
                    found[at][index, head] = number % rows[head] + sum(rows[:head])
    return found, lambda grad: (None,) * (1 + len(starts))


def gate_streams(place: Place, value: Array, keys: Array, queries: Array) -> Result:
    root: Any = np.sqrt(keys.shape[-1])
    product = (keys * queries).sum(-1, keepdims=True) / root
    size = np.maximum(np.abs(product), LEAST_PRODUCT)
    sigmoid = (1 + np.tanh(np.sign(product) * np.sqrt(size) / 2)) / 2
    slope = sigmoid * (1 - sigmoid) / (2 * np.sqrt(size)) * (np.abs(product) >= LEAST_PRODUCT)

    def backward(grad: Array) -> Gradients:
        to_product = (grad * value[..., None, :]).sum(-1, keepdims=True) * slope / root
        return (grad * sigmoid).sum(-2), to_product * queries, to_product * keys

    return sigmoid * value[..., None, :], backward
