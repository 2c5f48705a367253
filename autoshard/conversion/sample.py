"""Tells files of weights apart by samples of their content: terabytes are not read for a question of yes or no."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

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
                last = max(0, size - _PIECE_BYTES)
                for start in sorted({last * piece // (_PIECES - 1) for piece in range(_PIECES)}):
                    file.seek(start)
                    digest.update(file.read(_PIECE_BYTES))
        except OSError as error:
            raise AutoshardError(f"{path} cannot be read: {error.strerror or error}") from None
        total += size
    many = f"{len(files)} file{'s' * (len(files) != 1)} of {total:,} bytes"
    return f"{many}, samples of SHA-256 {digest.hexdigest()[:_DIGITS]}"
