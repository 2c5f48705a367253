"""Rules for token embeddings, learned positions, and rotary positions, however they are written."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from autoshard.errors import AutoshardError
from autoshard.tracer.dims import reshape, resolve, size_of, unify
from autoshard.tracer.rules.experts import chosen
from autoshard.tracer.tracer import Tracer, finishes, rule
from autoshard.tracer.values import (
    Constant,
    Input,
    Parameter,
    PositionRows,
    Selection,
    Turned,
    Unsupported,
    Value,
    View,
)

LARGEST_HEAD = 1024
"""Elements of what is multiplied out: the square of it at each position looked at."""
TOLERANCE = 1e-6
"""Largest error of sines and cosines; a fifth of it more for each position: tables come in FP32, angles lose digits."""


@rule("embedding")
def embedding(
    t: Tracer, table: Value, ids: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Value:
    if scale_grad_by_freq:
        raise Unsupported("it divides the gradient of a row by how often it is read; leave out scale_grad_by_freq")
    return _look_up(t, table, ids, padding_idx)


@rule("index", "index_select")
def index(t: Tracer, x: Value, *args: Value) -> Value:
    """The value of table[positions]; index_select has the axis before the places."""
    places = args[-1]
    if isinstance(places, (list, tuple)):
        found = chosen(t, x, places)
        if found is not None:
            return found
        if len(places) != 1:
            raise Unsupported("it picks elements of a tensor by several lists of places")
        places = places[0]
    return _look_up(t, x, places)


def _look_up(t: Tracer, table: Value, ids: Value, padding_idx: int = -1) -> Value:
    """The rows of a table for token ids or positions. padding_idx: the row that is not learned here; -1: none."""
    if not (isinstance(table, View) and isinstance(table.tensor, Parameter) and len(table.axes) == 2):
        raise Unsupported("it picks rows of what is not a parameter of two dims")
    if isinstance(ids, Constant):
        positions = ids.compute().reshape(-1, t.seq.size)
        if not bool((positions == torch.arange(t.seq.size)).all()):
            raise Unsupported("it picks rows of a table other than 0, 1, 2, ... for the tokens of a sequence")
        if padding_idx >= 0:
            raise Unsupported(f"padding_idx={padding_idx} keeps the row of a position from being learned; leave it out")
        return PositionRows(table)
    if not (isinstance(ids, View) and isinstance(ids.tensor, Input)):
        raise Unsupported("it picks rows of a parameter by something else than token ids or positions")
    rows, columns = table.axes
    for dim in resolve(rows):
        dim.name = dim.name or "vocab"
    unlearned = {"padding_idx": padding_idx} if padding_idx >= 0 else {}
    found = t.emit("embedding", (ids.tensor, table.tensor), (t.batch, t.seq, *columns), **unlearned)
    return View(found, (*ids.axes, columns))


def position_rows(t: Tracer, x: Value, axis: int, count: int) -> PositionRows | None:
    """The first `count` rows of an axis of a parameter [1, ..., rows, width], if they are one for each token; None if
    they are something else.
    """
    if not (isinstance(x, View) and isinstance(x.tensor, Parameter)) or count != t.seq.size:
        return None
    axes = tuple(dims for dims in x.axes if dims)
    if len(axes) != 2 or axis % len(x.axes) != len(x.axes) - 2:
        return None
    return PositionRows(View(x.tensor, axes))


def add_positions(t: Tracer, x: View, rows: PositionRows) -> View:
    """The value of x + table[0, 1, 2, ...]."""
    positions, columns = rows.table.axes
    if size_of(positions) < t.seq.size:
        raise AutoshardError(
            f"the model learned {size_of(positions):,} positions and is traced with {t.seq.size:,} tokens: give a "
            f"sequence length (--seq-len, seq_len) of at most {size_of(positions):,}"
        )
    unify(x.axes[-1], columns)
    if x.shape[-2] != (t.seq,):
        raise Unsupported("it adds learned positions to something else than the tokens of a sequence")
    for dim in resolve(positions):
        dim.name = "position"
    return View(t.emit("position_embedding", (x.tensor, rows.table.tensor), x.tensor.dims), x.axes)


def looked_at(t: Tracer) -> list[int]:
    """The positions whose turns are computed: early ones, where a turn is unmistakable, and the last."""
    count = t.seq.size
    return sorted({one for one in (0, 1, 2, 3, 5, 8, 13, count // 2, count - 1) if 0 <= one < count})


def turned(t: Tracer, x: Value) -> Turned:
    """A view, or a part of its last axis, with the identity as its linear function, to be turned by what follows."""
    if isinstance(x, Turned):
        return x
    if isinstance(x, Selection) and x.axis == len(x.view.axes) - 1 and not x.drops:
        whole = turned(t, x.view)
        return Turned(x.view, whole.tail, whole.matrix[..., x.start : x.stop, :])
    view = t.view(x)
    tail = 2 if len(view.axes) > 3 and size_of(view.axes[-1]) == 2 else 1
    shape = [size_of(axis) for axis in view.axes[-tail:]]
    width = prod(shape)
    if width > LARGEST_HEAD:
        raise Unsupported(f"it turns or mixes {width} numbers by constant tables, where a head is expected")
    matrix = torch.eye(width, dtype=torch.float64).reshape(*shape, width)
    return Turned(view, tail, matrix.expand(len(looked_at(t)), *matrix.shape))


def turned_part(found: Turned, axis: int, places: Any) -> Turned:
    """A part of the last axis of a turned view. places: a slice, or one index."""
    count = found.matrix.dim() - 2
    lead = len(found.view.axes) - found.tail
    if axis not in (-1, lead + count - 1):
        raise Unsupported("it takes a part of an axis that is neither the last nor made by a projection")
    return Turned(found.view, found.tail, found.matrix[..., places, :])


def turned_shape(x: Turned, shape: tuple[int, ...]) -> Turned | None:
    """A turned view after a reshape of its last axes; None if other axes change as well."""
    lead = [size_of(axis) for axis in x.view.axes[: -x.tail]]
    if list(shape[: len(lead)]) != lead:
        return None
    tail = shape[len(lead) :]
    return Turned(x.view, x.tail, x.matrix.reshape(x.matrix.shape[0], *tail, x.matrix.shape[-1]))


def times_table(t: Tracer, x: Value, table: Constant) -> Turned:
    """A turned view times a table, if the table depends on positions and places in a head."""
    found = turned(t, x)
    return Turned(found.view, found.tail, found.matrix * _at_positions(t, found, table.compute()))


def _at_positions(t: Tracer, x: Turned, table: torch.Tensor) -> torch.Tensor:
    """The table at the positions looked at: [positions, *tail or 1, 1]."""
    lead = x.view.axes[: -x.tail]
    tail = x.matrix.dim() - 2
    wide = table.to(torch.complex128 if table.is_complex() else torch.float64)
    wide = wide.reshape((1,) * (len(lead) + tail - wide.dim()) + tuple(wide.shape))
    position = next((i for i, axis in enumerate(lead) if resolve(axis) == (t.seq,)), None)
    if position is None:
        raise Unsupported("it multiplies a constant table with a tensor that has no axis of tokens")
    for i in reversed(range(len(lead))):
        if i == position:
            continue
        if not bool((wide == wide.narrow(i, 0, 1)).all()):
            raise Unsupported("it multiplies heads or sequences by a constant table that differs between them")
        wide = wide.select(i, 0)
    if wide.shape[0] == 1:
        return wide.unsqueeze(-1)
    return wide[looked_at(t)].unsqueeze(-1)


def negative(t: Tracer, x: Value) -> Turned:
    found = turned(t, x)
    return Turned(found.view, found.tail, -found.matrix)


def plus(t: Tracer, one: Turned, other: Turned, sign: float = 1.0) -> Turned:
    _check_same(one, other)
    return Turned(one.view, one.tail, one.matrix + sign * other.matrix)


def _check_same(one: Turned, other: Turned) -> None:
    if not one.view.same(other.view) or one.matrix.shape[1:-1] != other.matrix.shape[1:-1]:
        raise Unsupported("it puts parts of different tensors together")


@rule("cat", "concat", "stack")
def cat(t: Tracer, parts: list[Value], axis: int = 0) -> Value:
    """A turned view put together from parts of one head; torch.stack makes a new axis of them."""
    found = [turned(t, part) for part in parts]
    stacked = len(t.shape) > len(found[0].view.axes) - found[0].tail + found[0].matrix.dim() - 2
    for other in found[1:]:
        if not found[0].view.same(other.view):
            raise Unsupported("it puts parts of different tensors together")
    if axis not in (-1, len(t.shape) - 1):
        raise Unsupported("it puts tensors together along an axis that is not the last")
    matrices = [one.matrix for one in found]
    matrix = torch.stack(matrices, -2) if stacked else torch.cat(matrices, -2)
    return Turned(found[0].view, found[0].tail, matrix)


@rule("view_as_complex")
def view_as_complex(t: Tracer, x: Value) -> Value:
    found = turned(t, x)
    pairs = found.matrix
    return Turned(found.view, found.tail, torch.complex(pairs[..., 0, :].contiguous(), pairs[..., 1, :].contiguous()))


@rule("view_as_real")
def view_as_real(t: Tracer, x: Value) -> Value:
    """The real and imaginary parts of a product; the tensor that is turned is real, so they multiply parts of the
    table.
    """
    found = turned(t, x)
    return Turned(found.view, found.tail, torch.stack((found.matrix.real, found.matrix.imag), -2))


@finishes(Turned)
def finish_turned(t: Tracer, x: Turned) -> View:
    """The turned view as an operator rope over all of the view's tail or a part of it, or the view itself if nothing
    turns.
    """
    lead, tail = x.view.axes[: -x.tail], x.view.axes[-x.tail :]
    matrix = x.matrix.reshape(x.matrix.shape[0], -1, x.matrix.shape[-1])
    width = matrix.shape[1]
    read = matrix.abs().amax((0, 1)).nonzero().flatten()
    start = int(read[0]) if len(read) else 0
    if matrix.is_complex() or matrix.shape[2] < start + width or (len(read) and int(read[-1]) >= start + width):
        raise Unsupported("it takes parts of a head that are not put together again")
    base = View(x.view.tensor, (*lead, tuple(dim for axis in tail for dim in axis)))
    if matrix.shape[2] != width:
        base = t.view(Selection(base, len(lead), start, start + width))
        matrix = matrix[:, :, start : start + width]
    axes = (*base.axes[:-1], *reshape(base.axes[-1:], x.matrix.shape[1:-1]))
    if _close(matrix, torch.eye(width, dtype=torch.float64).expand_as(matrix), looked_at(t)):
        return View(base.tensor, axes)
    attributes = rotary_attributes(matrix, looked_at(t))
    if attributes is None:
        raise Unsupported("it multiplies by a constant table in a way that is not rotary positions")
    found = t.emit("rope", (base.tensor,), base.tensor.dims, **attributes)
    found.over = base.axes[-1]
    return View(found, axes)


def rotary_attributes(matrix: torch.Tensor, positions: list[int]) -> dict[str, Any] | None:
    """Attributes of the operator rope that does what the matrix does; None if the matrix is no rotary turn.

    matrix: [position, to, from] at these positions.
    """
    width = matrix.shape[-1]
    first = matrix[positions.index(1)] if 1 in positions else matrix[-1]
    still = torch.eye(width, dtype=torch.float64).expand(len(positions), -1, -1)
    turning = 1 + max(i for i in range(width) if not _close(matrix[:, i], still[:, i], positions))
    for interleaved in (False, True):
        for rotary_dim in dict.fromkeys((width, turning + turning % 2)):
            half = rotary_dim // 2
            pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
            angles = torch.stack([torch.atan2(first[b, a], first[a, a]) for a, b in pairs])
            if _close(matrix, _turns(angles, pairs, positions, width), positions):
                found: dict[str, Any] = {"rotary_dim": rotary_dim, **_speeds(angles, rotary_dim)}
                return {**found, "interleaved": True} if interleaved else found
    return None


def _close(one: torch.Tensor, other: torch.Tensor, positions: list[int]) -> bool:
    allowed = TOLERANCE * (1 + 0.2 * torch.tensor(positions, dtype=torch.float64))
    return bool(((one - other).abs().flatten(1).amax(1) <= allowed).all())


def _turns(angles: torch.Tensor, pairs: list[tuple[int, int]], positions: list[int], width: int) -> torch.Tensor:
    found = torch.eye(width, dtype=torch.float64).repeat(len(positions), 1, 1)
    for p, position in enumerate(positions):
        for (a, b), angle in zip(pairs, angles, strict=True):
            cos, sin = torch.cos(position * angle), torch.sin(position * angle)
            found[p, a, a], found[p, a, b], found[p, b, a], found[p, b, b] = cos, -sin, sin, cos
    return found


def _speeds(angles: torch.Tensor, rotary_dim: int) -> dict[str, Any]:
    """The attribute theta if the speeds are theta^(-2i / rotary_dim), else the speeds themselves. angles: a
    position's.
    """
    if len(angles) > 1 and float(angles[-1]) > 0:
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
        found = float(angles[-1]) ** (-1 / float(exponents[-1]))
        for digits in range(1, 9):  # the shortest number is the one that somebody wrote: FP32 tables have seven
            theta = float(f"{found:.{digits}g}")
            if torch.allclose(angles, theta**-exponents, rtol=2 * TOLERANCE, atol=0.0):
                return {"theta": theta}
    return {"frequencies": tuple(float(angle) for angle in angles)}
