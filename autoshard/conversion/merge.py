"""Adds what a low-rank adapter does to a part of its weight, so that the model needs none."""

from __future__ import annotations

import numpy as np

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.dtypes import element_type
from autoshard.conversion.regions import Array
from autoshard.graph.adapters import RANK
from autoshard.models.adapter_weights import Adapter


def computed_dtype(dtype: str) -> str:
    """The dtype that weights of a dtype are merged in: FP32, FP64 for those that have more digits."""
    return "F64" if dtype == "F64" else "F32"


def boxes(adapter: Adapter, box: Box) -> tuple[Box, Box]:
    """The boxes of both matrices that a box of the weight needs."""
    whole = {RANK: (0, adapter.rank)} | dict(zip(adapter.dims, zip(box.offsets, box.sizes, strict=True), strict=True))

    def of(*dims: str) -> Box:
        return Box(tuple(whole[dim][0] for dim in dims), tuple(whole[dim][1] for dim in dims))

    return of(RANK, *adapter.contracted), of(*adapter.given, RANK)


def merged(adapter: Adapter, weight: Array, down: Array, up: Array, dtype: str) -> Array:
    """A part of a weight W with what its adapter adds, W + scale * up down. All are bits of `dtype`, that of
    `computed_dtype`."""
    wide = np.float64 if dtype == "F64" else np.float32
    of_weight, of_down, of_up = (one.view(wide) for one in (weight, down, up))
    product = of_up.reshape(-1, adapter.rank) @ of_down.reshape(adapter.rank, -1)
    sizes, dims = of_up.shape[:-1] + of_down.shape[1:], adapter.given + adapter.contracted
    added = product.reshape(sizes).transpose([dims.index(dim) for dim in adapter.dims])
    total: Array = of_weight + wide(adapter.scale) * added
    return total.view(element_type(dtype))
