"""Collectives between simulated ranks. An array is [*mesh, *local]: entry [i, j] is what rank (i, j) holds.

Ranks along several axes taken together are in mesh order, the last axis varying fastest. `over` names axes in that
order; dims are counted without the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Axes = Mapping[str, int]


def all_reduce(x: Array, axes: Axes, over: tuple[str, ...], reduction: str = "sum") -> Array:
    at = _positions(axes, over)
    reduced = x.max(at, keepdims=True) if reduction == "max" else x.sum(at, keepdims=True)
    return np.broadcast_to(reduced, x.shape)


def all_gather(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    at, left = _positions(axes, over), len(axes) - len(over)
    merged = np.moveaxis(x, at, range(left + dim, len(axes) + dim))
    shape = list(x.shape[len(axes) :])
    shape[dim] *= _count(axes, over)
    mesh = [1 if axis in over else size for axis, size in axes.items()]
    return np.broadcast_to(merged.reshape(*mesh, *shape), (*axes.values(), *shape))


def reduce_scatter(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    at, left = _positions(axes, over), len(axes) - len(over)
    pieces = _unfold(x, axes, over, dim).sum(at)
    return np.moveaxis(pieces, range(left + dim, left + dim + len(over)), at)


def all_to_all(x: Array, axes: Axes, over: tuple[str, ...], gather_dim: int, split_dim: int) -> Array:
    """gather_dim stops being split, split_dim starts being split."""
    at = _positions(axes, over)
    pieces = _unfold(x, axes, over, split_dim)
    mesh, local, pieces_at = _labels(axes, x, over, split_dim)
    target = list(mesh)
    for position, label in zip(at, pieces_at, strict=True):
        target[position] = label
    sources = [mesh[position] for position in at]
    gathered = [*local[:gather_dim], *sources, *local[gather_dim:]]
    received: Array = np.einsum(pieces, _unfolded(mesh, local, pieces_at, split_dim), [*target, *gathered])
    shape = list(x.shape)
    shape[len(axes) + gather_dim] *= _count(axes, over)
    shape[len(axes) + split_dim] //= _count(axes, over)
    return received.reshape(shape)


def take_piece(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    """Each rank keeps its own piece of what it holds."""
    mesh, local, _ = _labels(axes, x, over, dim)
    own = [mesh[position] for position in _positions(axes, over)]
    diagonal: Array = np.einsum(_unfold(x, axes, over, dim), _unfolded(mesh, local, own, dim), [*mesh, *local])
    return diagonal


def pad(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    """The dual of take_piece on a replicated value: zero but for this rank's piece."""
    count = _count(axes, over)
    shape = list(x.shape)
    shape[len(axes) + dim] *= count
    whole = np.zeros(shape, x.dtype)
    mesh, local, _ = _labels(axes, x, over, dim)
    own = [mesh[position] for position in _positions(axes, over)]
    view = np.einsum(_unfold(whole, axes, over, dim), _unfolded(mesh, local, own, dim), [*mesh, *local])
    view[...] = x
    return whole


def move(kind: str, x: Array, axes: Axes, over: tuple[str, ...], from_dim: int | None, to_dim: int | None) -> Array:
    """One half of a transition: from_dim stops being split, to_dim starts being split."""
    match kind:
        case "identity":
            return x
        case "scale":
            return x / _count(axes, over)
        case "all_reduce":
            return all_reduce(x, axes, over)
    if kind == "all_to_all":
        assert from_dim is not None and to_dim is not None
        return all_to_all(x, axes, over, from_dim, to_dim)
    if kind in ("all_gather", "pad"):
        assert from_dim is not None and to_dim is None
        return (all_gather if kind == "all_gather" else pad)(x, axes, over, from_dim)
    assert kind in ("slice", "reduce_scatter") and to_dim is not None and from_dim is None
    return (take_piece if kind == "slice" else reduce_scatter)(x, axes, over, to_dim)


def ring_gather(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    """As all_gather, but each rank passes on what it has to the next one, count - 1 times."""
    count = _count(axes, over)
    held = [_grouped(x, axes, over)]
    for _ in range(count - 1):
        held.append(np.roll(held[-1], 1, 0))  # after s passes rank r has the piece of rank r - s
    rank, piece = np.arange(count)[:, None], np.arange(count)
    pieces = np.stack(held)[(rank - piece) % count, rank]  # [rank, piece, rest of the mesh, local]
    at = 2 + len(axes) - len(over) + dim
    moved = np.moveaxis(pieces, 1, at - 1)
    whole = moved.reshape(*moved.shape[: at - 1], -1, *moved.shape[at + 1 :])
    return _ungrouped(whole, axes, over)


def ring_reduce(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    """As reduce_scatter, but sums travel: each rank adds its part and passes on, until a sum is home after count."""
    count = _count(axes, over)
    grouped = _grouped(x, axes, over)
    at = 1 + len(axes) - len(over) + dim
    pieces = grouped.reshape(*grouped.shape[:at], count, -1, *grouped.shape[at + 1 :])
    rank = np.arange(count)
    total = np.zeros_like(np.moveaxis(pieces, at, 1)[rank, 0])
    for passes in range(count):
        total = np.roll(total, 1, 0) if passes else total
        total = total + np.moveaxis(pieces, at, 1)[rank, (rank - passes) % count]
    return _ungrouped(np.roll(total, 1, 0), axes, over)


def _grouped(x: Array, axes: Axes, over: tuple[str, ...]) -> Array:
    """[ranks along `over`, rest of the mesh, local]."""
    moved = np.moveaxis(x, _positions(axes, over), range(len(over)))
    return moved.reshape(-1, *moved.shape[len(over) :])


def _ungrouped(x: Array, axes: Axes, over: tuple[str, ...]) -> Array:
    unflattened = x.reshape(*(axes[axis] for axis in over), *x.shape[1:])
    return np.moveaxis(unflattened, range(len(over)), _positions(axes, over))


def _positions(axes: Axes, over: tuple[str, ...]) -> tuple[int, ...]:
    names = list(axes)
    at = tuple(names.index(axis) for axis in over)
    assert at == tuple(sorted(at)), over
    return at


def _count(axes: Axes, over: tuple[str, ...]) -> int:
    return prod(axes[axis] for axis in over)


def _unfold(x: Array, axes: Axes, over: tuple[str, ...], dim: int) -> Array:
    """Cut a local dim into one index for each axis of `over`, outer axes first, and the rest: a view if it can be."""
    at = len(axes) + dim
    sizes = [axes[axis] for axis in over]
    assert x.shape[at] % prod(sizes) == 0, (x.shape, over, dim)
    return x.reshape(*x.shape[:at], *sizes, x.shape[at] // prod(sizes), *x.shape[at + 1 :])


def _labels(axes: Axes, x: Array, over: tuple[str, ...], dim: int) -> tuple[list[int], list[int], list[int]]:
    """einsum labels of the mesh, of the local dims, and of the pieces that `_unfold` makes."""
    labels = list(range(x.ndim + len(over)))
    return labels[: len(axes)], labels[len(axes) : x.ndim], labels[x.ndim :]


def _unfolded(mesh: list[int], local: list[int], pieces: list[int], dim: int) -> list[int]:
    return [*mesh, *local[:dim], *pieces, *local[dim:]]
