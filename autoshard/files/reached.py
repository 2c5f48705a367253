"""Tells in one line that a place cannot be reached: its name is too long, or a folder above it may not be entered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autoshard.errors import AutoshardError


@contextmanager
def reached(place: str) -> Iterator[None]:
    """Turns an OSError inside the context into an AutoshardError. place: the path, with its option, in that error."""
    try:
        yield
    except OSError as error:
        raise AutoshardError(f"{place} cannot be read: {error.strerror or error}") from None
