"""Shuffles without a list: each position of the permutation is computed alone, so a billion rows need no memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
"""Rounds of the Feistel network. Four suffice for large domains (Luby and Rackoff 1988); small ones need more."""


def shuffled(positions: NDArray[np.int64], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The elements at some positions of a permutation of 0 .. count - 1. positions: [n], each below count.

    A Feistel network permutes the next larger power of four; results of count or more are permuted again until they are
    below (cycle walking). It does not use numpy's generators, whose streams may change between releases: a resumed run
    must see the same order.
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    keys = hashed(np.arange(_ROUNDS, dtype=np.uint64), int(hashed(np.array([epoch], dtype=np.uint64), seed)[0]))
    values = _permuted(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(values >= count)
    while len(outside):
        values[outside] = _permuted(values[outside], half, keys)
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)


def hashed(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """splitmix64 (Steele, Lea, Flood 2014) at values + 1 steps from a seed, uint64 [n]."""
    return _mixed(
        values * np.uint64(0x9E3779B97F4A7C15) + np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64)
    )


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def _permuted(values: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers of 2 x half bits after one pass of the network, uint64 [n]."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right * np.uint64(0x9E3779B97F4A7C15) + key) & mask)
    joined: NDArray[np.uint64] = (left << half) | right
    return joined
