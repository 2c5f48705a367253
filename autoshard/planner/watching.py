"""A search that somebody watches: who does can end it early and shows how it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WATCH: ContextVar[Callable[[], bool] | None] = ContextVar("watch", default=None)


@contextmanager
def watched_by(watch: Callable[[], bool]) -> Iterator[None]:
    """A context in which every search calls `watch` now and then and, once that returns False, takes the best layout
    that it knows."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def goes_on() -> bool:
    """Whether who watches lets the search go on; without anybody it does."""
    watch = _WATCH.get()
    return watch is None or watch()
