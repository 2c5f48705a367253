"""Rectangular parts of a tensor, by offsets and sizes along each dim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from types import EllipsisType


@dataclass(frozen=True)
class Box:
    """A rectangular part of a tensor: elements [offset, offset + size) along each dim."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    def within(self, offsets: tuple[int, ...]) -> Box:
        """The same box in the coordinates of a tensor in which this one's origin lies at `offsets`."""
        return Box(tuple(a + b for a, b in zip(self.offsets, offsets, strict=True)), self.sizes)

    def common(self, other: Box) -> Box | None:
        """The box that this one and another of the same tensor share; None if they share nothing."""
        offsets = tuple(max(a, b) for a, b in zip(self.offsets, other.offsets, strict=True))
        stops = tuple(min(a, b) for a, b in zip(self.stops, other.stops, strict=True))
        if any(stop <= offset for offset, stop in zip(offsets, stops, strict=True)):
            return None
        return Box(offsets, tuple(stop - offset for offset, stop in zip(offsets, stops, strict=True)))

    def common_elements(self, other: Box) -> int:
        """The elements of `common`, 0 for None, without the box."""
        elements = 1
        for at, size, other_at, other_size in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True):
            length = min(at + size, other_at + other_size) - max(at, other_at)
            if length <= 0:
                return 0
            elements *= length
        return elements

    @property
    def stops(self) -> tuple[int, ...]:
        return tuple(offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))

    def rows_around(self, inside: Box) -> Box:
        """The smallest box that holds a box inside this one and is contiguous where this one is row-major."""
        dim = next((d for d, size in enumerate(inside.sizes) if size != 1), len(self.sizes) - 1) + 1
        return Box(inside.offsets[:dim] + self.offsets[dim:], inside.sizes[:dim] + self.sizes[dim:])

    def position(self, inside: Box) -> int:
        """The index, row-major within this box, of the first element of a box inside it."""
        index = 0
        for size, own_offset, offset in zip(self.sizes, self.offsets, inside.offsets, strict=True):
            index = index * size + offset - own_offset
        return index

    def slices(self, origin: tuple[int, ...]) -> tuple[EllipsisType | slice, ...]:
        """The index that cuts this box, as a view, out of an array whose first element lies at `origin`. Without the
        ellipsis numpy would copy a number out of an array without dims."""
        return (..., *(slice(a - o, b - o) for a, b, o in zip(self.offsets, self.stops, origin, strict=True)))


def boxes_of_run(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Elements [start, stop) of a tensor in row-major order, as boxes in that order: 2 dims - 1 of them at most.

    A run begins and ends inside a row: what is left of the first row, whole rows, the beginning of the last one.
    """
    if start >= stop:
        return
    if len(shape) < 2:
        yield Box((start,), (stop - start,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:  # inside one row
        yield from _in_row(shape, last, start, stop)
        return
    yield from _in_row(shape, first - 1, start, first * row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    yield from _in_row(shape, last, last * row, stop)


def _in_row(shape: tuple[int, ...], index: int, start: int, stop: int) -> Iterator[Box]:
    before = index * prod(shape[1:])
    for box in boxes_of_run(shape[1:], start - before, stop - before):
        yield Box((index, *box.offsets), (1, *box.sizes))
