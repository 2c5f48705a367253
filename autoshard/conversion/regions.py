"""Read and write boxes of parameters in files run by run, wherever and however strided they lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.page_cache import read_once
from autoshard.conversion.places import Place
from autoshard.errors import AutoshardError

Array = NDArray[Any]
"""Elements as unsigned integers of their width: they are moved, and computed with only where a dtype is asked for."""


_BLOCK = (256, 32)
"""Elements along the dim that is contiguous in the one array, and in the other; measured on 2-byte elements."""


@dataclass(frozen=True)
class Region:
    """A box of a parameter in a file.

    start: first byte of the box's first element in the file. strides: bytes to the next element along each dim.
    width: bytes of an element.
    """

    path: Path
    tensor: str
    box: Box
    start: int
    strides: tuple[int, ...]
    width: int

    @staticmethod
    def of(place: Place, path: Path, tensor: str, first_byte: int, width: int) -> Region:
        strides = tuple(stride * width for stride in place.strides)
        return Region(path, tensor, place.box, first_byte + place.start * width, strides, width)

    def runs(self, box: Box) -> tuple[int, list[int], list[int]]:
        """(bytes of a contiguous run, order of the dims in the file, first byte of every run) of a box inside
        this one.
        """
        start = self.start + sum(
            (a - b) * stride for a, b, stride in zip(box.offsets, self.box.offsets, self.strides, strict=True)
        )
        order = sorted(range(len(box.sizes)), key=lambda dim: (-self.strides[dim], dim))
        run, outer = self.width, list(order)
        while outer and (box.sizes[outer[-1]] == 1 or self.strides[outer[-1]] == run):
            run *= box.sizes[outer.pop()]
        steps = [[index * self.strides[dim] for index in range(box.sizes[dim])] for dim in outer]
        return run, order, [start + sum(step) for step in product(*steps)]

    def is_outermost(self, dim: int) -> bool:
        """Whether no other dim has longer strides in the file than this one."""
        return self.box.sizes[dim] == 1 or self.strides[dim] == max(self.strides)

    @property
    def is_row_major(self) -> bool:
        """Whether the file has the elements in the parameter's order."""
        strides = [stride for stride, size in zip(self.strides, self.box.sizes, strict=True) if size > 1]
        return strides == sorted(strides, reverse=True)


Saw = Callable[[Path, int, memoryview], None]
"""Told what was read of a file, and from where."""


def read_box(descriptor: int, region: Region, box: Box, out: Array, saw: Saw | None = None) -> None:
    """Read a box into `out`, which has the box's shape. saw: is called with the bytes read.

    Raises AutoshardError where the file ends too early.
    """
    run, order, starts = region.runs(box)
    in_file = out
    direct = out.flags.c_contiguous and order == sorted(order)
    if not direct:
        in_file = np.empty([box.sizes[dim] for dim in order], out.dtype)
    data = in_file.reshape(-1).view(np.uint8).data
    for number, start in enumerate(starts):
        _read(descriptor, data[number * run : (number + 1) * run], start, region)
        if saw is not None:
            saw(region.path, start, data[number * run : (number + 1) * run])
    if not direct:
        _copy(out, in_file.transpose([order.index(dim) for dim in range(len(order))]))


def _read(descriptor: int, target: memoryview, start: int, region: Region) -> None:
    while len(target):
        count = read_once(descriptor, target, start)
        if count == 0:
            raise AutoshardError(f"{region.path} ends inside {region.tensor}")
        target, start = target[count:], start + count


def runs_of(region: Region, box: Box, values: Array) -> Iterator[tuple[int, memoryview]]:
    """(first byte in the file, bytes) of every run to write, for the values of a box."""
    run, order, starts = region.runs(box)
    in_file = values.transpose(order)
    if not in_file.flags.c_contiguous:
        in_file = np.empty(in_file.shape, values.dtype)
        _copy(in_file, values.transpose(order))
    data = in_file.reshape(-1).view(np.uint8).data
    for number, start in enumerate(starts):
        yield start, data[number * run : (number + 1) * run]


def _copy(out: Array, values: Array) -> None:
    """Copy an array in blocks that fit a cache, if the two are transposed: six times as fast as numpy alone."""
    if values.ndim < 2 or values.strides[-1] == values.itemsize or 1 in values.shape[-1:]:
        out[...] = values
        return
    fastest = min((dim for dim in range(values.ndim) if values.shape[dim] > 1), key=lambda dim: values.strides[dim])
    index = [slice(None)] * values.ndim
    for start in range(0, values.shape[fastest], _BLOCK[0]):
        index[fastest] = slice(start, start + _BLOCK[0])
        for other in range(0, values.shape[-1], _BLOCK[1]):
            index[-1] = slice(other, other + _BLOCK[1])
            out[tuple(index)] = values[tuple(index)]


def tiles(box: Box, limit: int, divide: Callable[[tuple[int, ...]], int]) -> Iterator[Box]:
    """The box cut into parts of at most `limit` elements. divide: sizes of a part -> the dim to halve next."""
    if box.elements <= limit:
        yield box
        return
    dim = divide(box.sizes)
    half = box.sizes[dim] // 2
    for offset, size in ((0, half), (half, box.sizes[dim] - half)):
        offsets = tuple(at + offset * (i == dim) for i, at in enumerate(box.offsets))
        yield from tiles(Box(offsets, tuple(size if i == dim else s for i, s in enumerate(box.sizes))), limit, divide)


def divider(regions: Sequence[Region]) -> Callable[[tuple[int, ...]], int]:
    """A function from sizes to the dim that `tiles` halves next, so that parts lie in long runs in all of these files.

    It is the first dim if all files are row-major: parts then come in order. Otherwise it is a dim that is outermost in
    every file (experts), and after that the longest: squares are long along both.
    """
    if all(region.is_row_major for region in regions):
        return lambda sizes: next(dim for dim, size in enumerate(sizes) if size > 1)
    outer = [dim for dim in range(len(regions[0].strides)) if all(region.is_outermost(dim) for region in regions)]

    def divide(sizes: tuple[int, ...]) -> int:
        longest = max(range(len(sizes)), key=lambda dim: sizes[dim])
        return next((dim for dim in outer if sizes[dim] > 1), longest)

    return divide


class OpenFiles:
    """File descriptors by path, of which only a few are open at a time."""

    def __init__(self, flags: int = os.O_RDONLY, most: int = 128):
        self._flags, self._most = flags | os.O_CLOEXEC, most
        self._open: dict[Path, int] = {}

    def __getitem__(self, path: Path) -> int:
        """The descriptor of the file, which is opened if need be. Raises OSError."""
        if path in self._open:
            self._open[path] = self._open.pop(path)  # the last to be closed
            return self._open[path]
        while len(self._open) >= self._most:
            os.close(self._open.pop(next(iter(self._open))))
        self._open[path] = os.open(path, self._flags)
        return self._open[path]

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
