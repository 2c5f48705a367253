"""Where a tensor of a file holds a box of a parameter: an offset and a stride for each dim, in elements.

Every layout here is of this form: flattened heads, fused matrices, transposed ones, one expert of many, a rank's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from autoshard.checkpoint.boxes import Box
from autoshard.interop.weights import Part

_PART, _ONE, _EXPERT = "part", "1", "expert"


@dataclass(frozen=True)
class Place:
    """box: of the parameter. start: of its first element in the tensor; strides: to the next one along each dim."""

    parameter: str
    box: Box
    start: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class TensorLayout:
    """A tensor of a file and what it holds; elements that no place names are zero."""

    name: str
    shape: tuple[int, ...]
    places: tuple[Place, ...]


def whole_box(dims: tuple[str, ...], sizes: Mapping[str, int]) -> Box:
    """Of a parameter with these dims."""
    return Box((0,) * len(dims), tuple(sizes[dim] for dim in dims))


def contiguous(parameter: str, box: Box, start: int = 0) -> Place:
    """The box row-major, from element `start` of the tensor on."""
    strides = [prod(box.sizes[index + 1 :]) for index in range(len(box.sizes))]
    return Place(parameter, box, start, tuple(strides))


def place_of(
    part: Part,
    dims: tuple[str, ...],
    sizes: Mapping[str, int],
    box: Box | None = None,
    origin: tuple[int, ...] | None = None,
    start: int = 0,
) -> Place:
    """Where a tensor with the dims `part.layout` holds a box of a parameter.

    dims: of the parameter. sizes: of the tensor's dims, where a rank has a part of them the part's. box: None is as
    much of the parameter from its beginning as the tensor has; where `part.expert` is given, that expert alone.
    origin: where the box starts among the tensor's own elements. start: elements of the tensor before all of this part.
    """
    box = whole_box(dims, sizes) if box is None else box
    own = {**sizes, _PART: part.parts, _ONE: 1}
    stride, strides = 1, {}
    for dim in reversed([dim for group in part.groups for dim in group]):
        strides[dim] = stride
        stride *= own[dim]
    start += part.index * strides.get(_PART, 0)
    if part.expert is not None:
        index = dims.index(_EXPERT)
        box = Box(
            tuple(part.expert if i == index else offset for i, offset in enumerate(box.offsets)),
            tuple(1 if i == index else size for i, size in enumerate(box.sizes)),
        )
    own_strides = tuple(strides.get(dim, 0) for dim in dims)
    start += sum(at * stride for at, stride in zip(origin or (), own_strides, strict=False))
    return Place(part.parameter, box, start, own_strides)


def restrided(place: Place, shape: tuple[int, ...], strides: tuple[int, ...]) -> Place:
    """The place in a tensor of this shape that is not row-major, but has these strides."""
    start, rest, moved = 0, place.start, list(place.strides)
    for dim, stride in enumerate(strides):
        row_major = prod(shape[dim + 1 :])
        at, rest = divmod(rest, row_major)
        start += at * stride
        for index, own in enumerate(place.strides):
            if row_major <= own < row_major * shape[dim]:
                moved[index] = own // row_major * stride
    return Place(place.parameter, place.box, start, tuple(moved))


def part_shape(part: Part, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Of the tensor, all its parts included."""
    own = {**sizes, _PART: part.parts, _ONE: 1}
    return tuple(prod(own[dim] for dim in group) for group in part.groups)
