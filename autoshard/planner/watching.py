"""A search that somebody watches: who does can end it early, and sees the best layout so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from autoshard.backends.problem import Problem
from autoshard.planner.ranking import Timed

_WATCH: ContextVar[Callable[[], bool] | None] = ContextVar("watch", default=None)


class BestSoFar(NamedTuple):
    """The best layout that a search knows while it runs. at_least_s: seconds that every layout takes at least, as far
    as that is proven by now."""

    problem: Problem
    best: Timed
    at_least_s: float


_SHOW: ContextVar[Callable[[BestSoFar], None] | None] = ContextVar("show", default=None)


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


@contextmanager
def shown_to(show: Callable[[BestSoFar], None]) -> Iterator[None]:
    """A context in which every search calls `show` when it has priced some more layouts. It finds what it would find
    without."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


def who_is_shown() -> Callable[[BestSoFar], None] | None:
    """The function that the best layout so far is given to; None where nobody looks."""
    return _SHOW.get()
