"""Which of many cases are tried: by default some, with AUTOSHARD_CASES=all in the environment all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

ALL = os.environ.get("AUTOSHARD_CASES") == "all"


def some(cases: Iterable[T], first: int | None = None, step: int = 1) -> list[T]:
    """By default the first so many of the cases, or of each `step` the first one; all where all are asked for."""
    every = list(cases)
    return every if ALL else every[:first:step]
