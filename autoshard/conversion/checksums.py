"""Compute the checksums of a file that is being written.

They are computed along the way while it grows at its end; parts that come in another order are read back.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence

from autoshard.conversion.output_file import Crc

_BLOCK_BYTES = 1 << 22


class Running:
    """A checksum of bytes [start, stop) of a file.

    update: adds a block to the checksum. reset: begins anew. Blocks are added as they are written while they come in
    order;
    after one that does not, `complete` begins anew and reads all of them back.
    """

    def __init__(
        self, start: int, stop: int, update: Callable[[memoryview | bytes], object], reset: Callable[[], None]
    ):
        self._start, self._stop, self._update, self._reset = start, stop, update, reset
        self._next: int | None = start

    def wrote(self, start: int, data: memoryview) -> None:
        if self._next == start and start + len(data) <= self._stop:
            self._update(data)
            self._next = start + len(data)
        else:
            self._next = None

    def complete(self, descriptor: int) -> None:
        """Read back the bytes that the checksum has not seen: the end of the part, or all of it."""
        if self._next is None:
            self._reset()
            self._next = self._start
        block = memoryview(bytearray(min(_BLOCK_BYTES, self._stop - self._next)))
        while self._next < self._stop:
            count = os.preadv(descriptor, [block[: self._stop - self._next]], self._next)
            assert count, "the file was made as long as it will be"
            self._update(block[:count])
            self._next += count


class Checksums:
    """The checksums of one file: CRC-32 of some of its parts, and SHA-256 of the whole.

    size: of the file in bytes. crcs: the parts. sha256: whether it is wanted.
    """

    def __init__(self, size: int, crcs: Sequence[Crc], sha256: bool):
        self._parts = sorted(crcs, key=lambda one: one.start)
        self._starts = [one.start for one in self._parts]
        self._values = [0] * len(self._parts)
        self._crcs = [
            Running(one.start, one.start + one.size, self._crc(index), self._zero(index))
            for index, one in enumerate(self._parts)
        ]
        self._hash = hashlib.sha256()
        self._sha256 = Running(0, size, lambda data: self._hash.update(data), self._rehash) if sha256 else None

    def wrote(self, start: int, data: memoryview) -> None:
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and start < self._parts[index].start + self._parts[index].size:  # and not a header behind it
            self._crcs[index].wrote(start, data)
        if self._sha256 is not None:
            self._sha256.wrote(start, data)

    def finish(self, descriptor: int) -> str:
        """Write the CRCs into the file, and return its SHA-256; "" if that is not wanted."""
        for part, running, index in zip(self._parts, self._crcs, range(len(self._parts)), strict=True):
            running.complete(descriptor)
            for field in part.fields:
                os.pwrite(descriptor, self._values[index].to_bytes(4, "little"), field)
        if self._sha256 is None:
            return ""
        assert not self._parts, "a checksum of checksums"
        self._sha256.complete(descriptor)
        return self._hash.hexdigest()

    def _crc(self, index: int) -> Callable[[memoryview | bytes], object]:
        def update(data: memoryview | bytes) -> None:
            self._values[index] = zlib.crc32(data, self._values[index])

        return update

    def _zero(self, index: int) -> Callable[[], None]:
        return lambda: self._values.__setitem__(index, 0)

    def _rehash(self) -> None:
        self._hash = hashlib.sha256()
