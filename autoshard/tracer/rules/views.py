"""Rules for operators that move no numbers: other shapes, other orders, parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autoshard.tracer.dims import Dim, Dims, reshape, size_of
from autoshard.tracer.rules.experts import WHOLE, arranged
from autoshard.tracer.rules.positions import position_rows, turned, turned_part, turned_shape
from autoshard.tracer.tracer import Tracer, rule
from autoshard.tracer.values import (
    ExpertRows,
    Gates,
    Routed,
    Selection,
    Turned,
    Unsupported,
    Value,
    View,
)

END = 2**62
"""Slices to the end come as torch's largest index."""


@rule("to", "_to_copy", "type_as", "float", "contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh")
def same(t: Tracer, x: Value, *args: Value, **kwargs: Value) -> Value:
    """The value itself, of a copy or a cast: the plan decides about dtypes."""
    whole_numbers = isinstance(x, Gates) and x.part in WHOLE
    for given in (*args, *kwargs.values()):
        rounds = isinstance(given, torch.dtype) and not (given.is_floating_point or given.is_complex)
        if rounds and (given is torch.bool or not whole_numbers):
            raise Unsupported(f"it turns an activation into {given}")
    return x


@rule("detach")
def detach(t: Tracer, x: Value) -> Value:
    return t.without_gradient(x)


@rule("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
def dropout(t: Tracer, x: Value, p: float = 0.0, train: bool = False, *args: Value) -> Value:
    if train and p:
        raise Unsupported("dropout is left out of plans: trace the module in eval mode")
    return x


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "_reshape_alias", "view_as", "reshape_as")
def shaped(t: Tracer, x: Value, *args: Value) -> Value:
    if isinstance(x, Turned):
        found = turned_shape(x, t.shape)
        if found is not None:
            return found
    if isinstance(x, (Gates, Routed)):
        return arranged(t, x)
    view = t.view(x)
    return View(view.tensor, reshape(view.axes, t.shape))


@rule("transpose", "swapaxes")
def transpose(t: Tracer, x: Value, first: int, second: int) -> Value:
    order = list(range(len(t.shape)))
    order[first], order[second] = order[second], order[first]
    return _ordered(t, x, order)


@rule("permute")
def permute(t: Tracer, x: Value, order: Sequence[int]) -> Value:
    return _ordered(t, x, list(order))


@rule("t", "numpy_T", "mT")
def matrix_transpose(t: Tracer, x: Value) -> Value:
    order = list(range(len(t.shape)))
    order[-2:] = order[-1:-3:-1]
    return _ordered(t, x, order)


def _ordered(t: Tracer, x: Value, order: list[int]) -> Value:
    if isinstance(x, ExpertRows):
        view = x.parameter
        return ExpertRows(View(view.tensor, tuple(view.axes[i] for i in order)), x.gates)
    view = t.view(x)
    return View(view.tensor, tuple(view.axes[i] for i in order))


@rule("unsqueeze")
def unsqueeze(t: Tracer, x: Value, axis: int) -> Value:
    if isinstance(x, (Gates, Routed)):
        return arranged(t, x)
    view = t.view(x)
    axes = list(view.axes)
    axes.insert(axis % len(t.shape), ())
    return View(view.tensor, tuple(axes))


@rule("squeeze")
def squeeze(t: Tracer, x: Value, axis: int | Sequence[int] | None = None) -> Value:
    if isinstance(x, (Gates, Routed)):
        return arranged(t, x)
    view = t.view(x)
    count = len(view.axes)
    given = range(count) if axis is None else [axis] if isinstance(axis, int) else axis
    gone = {one % count for one in given if size_of(view.axes[one]) == 1}
    return View(view.tensor, tuple(dims for i, dims in enumerate(view.axes) if i not in gone))


@rule("expand", "expand_as", "broadcast_to")
def expand(t: Tracer, x: Value, *args: Value, **kwargs: Value) -> Value:
    view = t.view(x)
    axes: list[Dims] = [()] * (len(t.shape) - len(view.axes)) + list(view.axes)
    for i, size in enumerate(t.shape):
        if size_of(axes[i]) == 1 and size != 1:
            axes[i] = (*axes[i], Dim(size))
    return View(view.tensor, tuple(axes))


@rule("repeat_interleave")
def repeat_interleave(t: Tracer, x: Value, repeats: int, dim: int | None = None, **kwargs: Value) -> Value:
    """The value with each head repeated, copies next to each other: shared key-value heads."""
    view = t.view(x)
    if dim is None or not isinstance(repeats, int):
        raise Unsupported("it repeats parts of a tensor a different number of times")
    axes = list(view.axes)
    axes[dim] = (*axes[dim], Dim(repeats))
    return View(view.tensor, tuple(axes))


@rule("slice", "narrow")
def slice_(
    t: Tracer, x: Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    if isinstance(x, Gates):
        return arranged(t, x)
    if isinstance(x, Turned):
        return turned_part(x, axis, slice(start, end if end is None or end < END else None, step))
    if isinstance(x, Selection) and not x.drops and x.axis == axis % len(x.view.axes) and step == 1:
        first, last, _ = slice(start, end, 1).indices(x.stop - x.start)
        return Selection(x.view, x.axis, x.start + first, x.start + last)
    view = t.view(x)
    axis %= len(view.axes)
    size = size_of(view.axes[axis])
    first, last, _ = slice(start, end, 1).indices(size)
    if (first, last, step) == (0, size, 1):
        return view
    rows = position_rows(t, view, axis, last) if (first, step) == (0, 1) else None
    if rows is not None:
        return rows
    if step != 1:
        return turned_part(turned(t, view), axis, slice(first, last, step))
    return Selection(view, axis, first, last)


@rule("select")
def select(t: Tracer, x: Value, axis: int, index: int) -> Value:
    if isinstance(x, Turned):
        return turned_part(x, axis, index)
    view = t.view(x)
    axis %= len(view.axes)
    index %= size_of(view.axes[axis])
    if axis == len(view.axes) - 1 and size_of(view.axes[axis]) == 2:
        return turned_part(turned(t, view), axis, index)
    return Selection(view, axis, index, index + 1, drops=True)


@rule("split", "split_with_sizes")
def split(t: Tracer, x: Value, sizes: int | Sequence[int], axis: int = 0) -> Value:
    """The pieces of a value along an axis. sizes: of all pieces, or of each."""
    if isinstance(sizes, int):
        whole = _axis_size(t, x, axis)
        sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [slice_(t, x, axis, start, start + length) for start, length in zip(starts, sizes, strict=True)]


@rule("chunk")
def chunk(t: Tracer, x: Value, number: int, axis: int = 0) -> Value:
    """The pieces of a value along an axis, `number` of them."""
    return split(t, x, -(-_axis_size(t, x, axis) // number), axis)


@rule("unbind")
def unbind(t: Tracer, x: Value, axis: int = 0) -> Value:
    """The pieces of a value along an axis, each of one place; the axis is gone."""
    return [select(t, x, axis, index) for index in range(_axis_size(t, x, axis))]


def _axis_size(t: Tracer, x: Value, axis: int) -> int:
    if isinstance(x, Turned):
        return int(x.matrix.shape[-2])
    if isinstance(x, Selection) and not x.drops and x.axis == axis % len(x.view.axes):
        return x.stop - x.start
    return size_of(t.view(x).axes[axis])
