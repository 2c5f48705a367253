"""Read and write bytes that pass once, without filling the page cache with them."""

from __future__ import annotations

import errno
import os
import sys

_UNCACHED = 0x80
"""RWF_DONTCACHE (include/uapi/linux/fs.h, Linux 6.14): what was not in memory before is not kept there."""
_LEAST_BYTES = 1 << 20
"""The shortest read that leaves the cache at once; shorter ones have neighbours that will be asked for."""
_BLOCK_BYTES = 1 << 22
_BUSY_BYTES, _WINDOW_BYTES = 1 << 24, 1 << 28
"""Written last, for which the disk needs a moment; and how far behind it may be before nobody looks again."""
_GAP_BYTES = 1 << 14
"""The longest gap between writes that still count as in a row: headers between tensors."""
_PAGE_BYTES = 4096
_ADVISES = hasattr(os, "posix_fadvise")
_flags = _UNCACHED if sys.platform == "linux" else 0


def read_once(descriptor: int, target: memoryview, start: int) -> int:
    """Read bytes from offset `start` on into `target`, and return how many there were. Raises OSError."""
    global _flags
    if _flags and len(target) >= _LEAST_BYTES:
        try:
            return os.preadv(descriptor, [target], start, _flags)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            _flags = 0  # an older kernel, or a file system that cannot
    return os.preadv(descriptor, [target], start)


class WrittenOnce:
    """Writes a file from front to back: the disk begins at once, and bytes that it has leave the page cache.

    Parts that come in another order are left to the system.
    """

    def __init__(self) -> None:
        self._first = self._begun = self._next = 0

    def wrote(self, descriptor: int, start: int, count: int) -> None:
        if not 0 <= start - self._next <= _GAP_BYTES:
            self._first = self._begun = -(-start // _PAGE_BYTES) * _PAGE_BYTES
        self._next = start + count
        stop = self._next // _PAGE_BYTES * _PAGE_BYTES
        if stop - self._begun >= _BLOCK_BYTES:
            _pass_on(descriptor, self._begun, stop)
            _pass_on(descriptor, max(self._first, stop - _WINDOW_BYTES), stop - _BUSY_BYTES)
            self._begun = stop


def pass_on_all(descriptor: int) -> None:
    """Let all pages of a file leave the page cache."""
    if _ADVISES:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _pass_on(descriptor: int, start: int, stop: int) -> None:
    """Begin to write pages [start, stop) that are not on the disk yet; those that are leave the page cache."""
    if _ADVISES and stop > start:
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
