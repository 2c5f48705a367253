"""Describe where a tensor of a file holds a box of a parameter: an offset and a stride for each dim, in elements.

Every layout here is of this form: flattened heads, fused matrices, transposed ones, one expert of many, a rank's part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autoshard.checkpoint.boxes import Box
from autoshard.models.weight_names import Part

_PART, _ONE = "part", "1"


@dataclass(frozen=True)
class Place:
    """A box of a parameter in a tensor of a file.

    start: element of the tensor that is the box's first. strides: elements to the next one along each dim.
    """

    parameter: str
    box: Box
    start: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TensorLayout:
    """A tensor of a file and the boxes that it holds; elements that no place names are zero."""

    name: str
    shape: tuple[int, ...]
    places: tuple[Place, ...]


def whole_box(dims: tuple[str, ...], sizes: Mapping[str, int]) -> Box:
    """The box that covers a parameter with these dims. sizes: of each dim."""
    return Box((0,) * len(dims), tuple(sizes[dim] for dim in dims))


def contiguous(parameter: str, box: Box) -> Place:
    """The place of a box that fills a tensor, row-major."""
    strides = [prod(box.sizes[index + 1 :]) for index in range(len(box.sizes))]
    return Place(parameter, box, 0, tuple(strides))


def place_of(
    part: Part,
    dims: tuple[str, ...],
    sizes: Mapping[str, int],
    box: Box | None = None,
    origin: tuple[int, ...] | None = None,
    start: int = 0,
) -> Place:
    """The place of a box of a parameter in a tensor with the dims `part.layout`.

    dims: of the parameter. sizes: of the tensor's dims; for a tensor of one rank, the rank's. box: None is as
    much of the parameter from its beginning as the tensor has; where `part.at` is given, its slice alone.
    origin: where the box starts among the tensor's own elements. start: elements of the tensor before all of this part.
    """
    box = whole_box(dims, sizes) if box is None else box
    dim_sizes = {**sizes, _PART: part.parts, _ONE: 1}
    stride = behind = 1
    strides: dict[str, int] = {}
    for dim in reversed([dim for group in part.groups for dim in group]):
        if dim in part.span[-1:]:
            start, behind = start + part.first * stride, stride
        strides[dim] = stride
        stride *= dim_sizes[dim]
        if dim in part.span[:1]:
            stride = part.rows * behind
    start += part.index * strides.get(_PART, 0)
    if slices := dict(part.at):
        box = Box(
            tuple(slices.get(dim, offset) for dim, offset in zip(dims, box.offsets, strict=True)),
            tuple(1 if dim in slices else size for dim, size in zip(dims, box.sizes, strict=True)),
        )
    own_strides = tuple(strides.get(dim, 0) for dim in dims)
    start += sum(at * stride for at, stride in zip(origin or (), own_strides, strict=False))
    return Place(part.parameter, box, start, own_strides)


def restrided(place: Place, shape: tuple[int, ...], strides: tuple[int, ...]) -> Place:
    """The place in a tensor that has these strides instead of being row-major.

    shape, strides: of the tensor, in elements.
    """
    start, rest, moved = 0, place.start, list(place.strides)
    for dim, stride in enumerate(strides):
        row_major = prod(shape[dim + 1 :])
        at, rest = divmod(rest, row_major)
        start += at * stride
        for index, own_stride in enumerate(place.strides):
            if row_major <= own_stride < row_major * shape[dim]:
                moved[index] = own_stride // row_major * stride
    return Place(place.parameter, place.box, start, tuple(moved))


def rows_of(place: Place, shape: tuple[int, ...], first: int, stop: int) -> Iterator[Place]:
    """The places of a tensor's rows [first, stop) in a tensor of these rows alone. shape: of the whole tensor."""
    row = prod(shape[1:])
    outer = [dim for dim, size in enumerate(place.box.sizes) if size > 1 and place.strides[dim] >= row]
    outer.sort(key=lambda dim: -place.strides[dim])
    steps = [place.strides[dim] // row for dim in outer]
    for offsets, sizes in _within([place.box.sizes[dim] for dim in outer], steps, place.start // row, first, stop):
        moved, kept = list(place.box.offsets), list(place.box.sizes)
        start = place.start - first * row
        for dim, offset, size in zip(outer, offsets, sizes, strict=True):
            moved[dim] += offset
            kept[dim] = size
            start += offset * place.strides[dim]
        yield Place(place.parameter, Box(tuple(moved), tuple(kept)), start, place.strides)


_Run = tuple[tuple[int, ...], tuple[int, ...]]


def _within(sizes: Sequence[int], steps: Sequence[int], at: int, first: int, stop: int) -> Iterator[_Run]:
    """(offsets, sizes) of all index ranges whose row, at + sum of index x step, is in [first, stop). steps: falling."""
    span = 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if at >= stop or at + span <= first:
        return
    if first <= at and at + span <= stop:
        yield (0,) * len(sizes), tuple(sizes)
        return
    size, step = sizes[0], steps[0]
    inner = 1 + sum((size - 1) * step for size, step in zip(sizes[1:], steps[1:], strict=True))
    begin = min(size, max(0, -(-(first - at) // step)))
    end = max(begin, min(size, (stop - at - inner) // step + 1))
    if begin < end:
        yield (begin, *(0 for _ in sizes[1:])), (end - begin, *sizes[1:])
    for index in (begin - 1, end):  # of these only some rows are inside
        if 0 <= index < size and not begin <= index < end:
            for offsets, kept in _within(sizes[1:], steps[1:], at + index * step, first, stop):
                yield (index, *offsets), (1, *kept)


def part_shape(part: Part, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of the tensor that `part` is in, with all its parts. sizes: of each dim."""
    dim_sizes = {**sizes, _PART: part.parts, _ONE: 1, **dict.fromkeys(part.span, 1)}
    lengths = [prod(dim_sizes[dim] for dim in group) for group in part.groups]
    return tuple(
        length * (part.rows if part.span and part.span[0] in group else 1)
        for length, group in zip(lengths, part.groups, strict=True)
    )
