"""No garbage collection while a search runs: it makes a million small values that live on and hardly a cycle, so that
looking for garbage among them takes a sixth of its time and finds none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A context, `with uncollected():` or around a function, in which Python collects no garbage; afterwards it does so
    where it did before. What was made meanwhile then counts as old: the first collection does not look through it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # unfreezing would set free what others froze
                gc.freeze()
                gc.unfreeze()
            gc.enable()
