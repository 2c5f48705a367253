"""Dropout in numpy: the mask written a second time, by the definition, of an element's place in the whole tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def mask(keys: npt.NDArray[np.int64], operator: str, places: Sequence[npt.NDArray[Any]], rate: float) -> Any:
    """keys [..., batch], places of the dims behind it [..., length] -> True where an element is kept."""
    digest = hashlib.sha256(f"0 0 {operator}".encode()).digest()
    rows: Words = keys.astype(np.int64).view(np.uint64) ^ np.uint64(int.from_bytes(digest[:8], "little"))
    for number, place in enumerate(places[:-1]):
        rows = splitmix(_behind(place, number + 1), rows[..., None])
    columns = _behind(places[-1], len(places)).astype(np.uint32)
    return fmix(rows[..., None], columns) >= round(rate * 2**32)


def _behind(place: npt.NDArray[Any], dims: int) -> npt.NDArray[Any]:
    """[*mesh, length] -> [*mesh, 1, ..., length] with so many dims in front of the last."""
    return place.reshape(*place.shape[:-1], *(1,) * dims, place.shape[-1])


def splitmix(place: npt.NDArray[Any], key: Words) -> Words:
    """Steele et al. 2014."""
    x = place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Words = x ^ (x.view(np.int64) >> 31).view(np.uint64)
    return found


def fmix(row: Words, column: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Rounds of murmur3's finalizer with arithmetic shifts; the sign bit turned, so that the order is that of int32."""
    low, high = (row & np.uint64(0xFFFFFFFF)).astype(np.uint32), (row >> np.uint64(32)).astype(np.uint32)
    x = low + column * np.uint32(0x9E3779B9)
    x = (x ^ (x.view(np.int32) >> 16).view(np.uint32)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x.view(np.int32) >> 13).view(np.uint32) ^ high) * np.uint32(0xC2B2AE35)
    found: npt.NDArray[np.int64] = x.view(np.int32).astype(np.int64) + 2**31
    return found
