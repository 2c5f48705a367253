"""Tells files of weights, and tensors in them, apart by samples of their content: terabytes are not read for a
question of yes or no."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from autoshard.errors import AutoshardError

_PIECES = 16
_PIECE_BYTES = 4096
_DIGITS = 12
"""Of a SHA-256, for people."""


def sampled(files: Collection[Path]) -> str:
    """A sentence that is the same for copies of the same files, wherever they are: how many, how large, and a SHA-256
    of their names, sizes and samples from their first byte to their last.

    Files that differ between two samples alone pass for the same. Raises AutoshardError for one that cannot be read.
    """
    digest, total = hashlib.sha256(), 0
    for path in sorted(files, key=lambda one: one.name):
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                digest.update(f"{path.name}\0{size}\0".encode())
                for piece in _pieces(file, 0, size):
                    digest.update(piece)
        except OSError as error:
            raise _unread(path, error) from None
        total += size
    many = f"{len(files)} file{'s' * (len(files) != 1)} of {total:,} bytes"
    return f"{many}, samples of SHA-256 {digest.hexdigest()[:_DIGITS]}"


def are_alike(one: tuple[Path, int], other: tuple[Path, int], size: int) -> bool:
    """Whether samples of two tensors' bytes are the same, from the first byte to the last.

    one, other: file, and the tensor's first byte in it. size: bytes of each. Raises AutoshardError for a file that
    cannot be read.
    """
    return _read(*one, size) == _read(*other, size)


def _read(path: Path, offset: int, size: int) -> list[bytes]:
    try:
        with path.open("rb") as file:
            return list(_pieces(file, offset, size))
    except OSError as error:
        raise _unread(path, error) from None


def _pieces(file: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    """Yields samples of `size` bytes of a file from `offset` on."""
    last = max(0, size - _PIECE_BYTES)
    for start in sorted({last * piece // (_PIECES - 1) for piece in range(_PIECES)}):
        file.seek(offset + start)
        yield file.read(min(_PIECE_BYTES, size))


def _unread(path: Path, error: OSError) -> AutoshardError:
    return AutoshardError(f"{path} cannot be read: {error.strerror or error}")
