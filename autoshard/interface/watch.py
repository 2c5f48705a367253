"""Long calls in a notebook or a Python prompt: a line shows how it goes, and Ctrl-C takes what is known by then."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType
from typing import Any, TextIO

from autoshard.planner.watching import watched_by

QUIET_S, EVERY_S = 1.0, 0.2
"""Seconds before anything is shown, and from one look to the next."""


def is_interactive() -> bool:
    """Whether a person types at this Python: a prompt or a notebook. In a script Ctrl-C ends the script."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


@contextmanager
def watched(what: str) -> Iterator[None]:
    """A context in which searches show that they run and end at Ctrl-C with the best layout so far, and answers that
    follow from searches with those that are known, where a person types; elsewhere nothing is changed. A second Ctrl-C
    is a KeyboardInterrupt. what: is said to be done."""
    if not is_interactive() or threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _Watch(what, sys.stderr)
    before = signal.signal(signal.SIGINT, watch.on_interrupt)
    try:
        with watched_by(watch):
            yield
    finally:
        signal.signal(signal.SIGINT, before)
        watch.clear()


@contextmanager
def counted(what: str, total: int, out: TextIO) -> Iterator[Callable[[str], None]]:
    """A line that counts what is done, for a notebook, which is no terminal: a function to call with a word on each."""
    done = itertools.count(1)

    def advance(word: str) -> None:
        out.write(f"\r{what}: {next(done):,} of {total:,} {word:<40.40}")
        out.flush()

    try:
        yield advance
    finally:
        out.write("\r" + " " * 79 + "\r")
        out.flush()


class _Watch:
    """What a search calls now and then. Mutable: whether it was interrupted, and when it last showed something."""

    def __init__(self, what: str, out: TextIO):
        self._what, self._out = what, out
        self._begin_s = self._shown_s = perf_counter()
        self._shows = self._interrupted = False

    def on_interrupt(self, number: int, frame: FrameType | None) -> Any:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def __call__(self) -> bool:
        now_s = perf_counter()
        if now_s - self._begin_s > QUIET_S and now_s - self._shown_s > EVERY_S:
            self._out.write(f"\r{self._what}: {now_s - self._begin_s:.0f} s; Ctrl-C takes what is known")
            self._out.flush()
            self._shows, self._shown_s = True, now_s
        return not self._interrupted

    def clear(self) -> None:
        if self._shows:
            self._out.write("\r" + " " * 79 + "\r")
            self._out.flush()
