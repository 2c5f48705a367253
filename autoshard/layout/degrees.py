"""The degrees of a layout, whatever else of it is decided."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import Protocol


class Degrees(Protocol):
    """Ranks along each axis: a Strategy has them, and so has a planner's draft of one."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def dp_replicate(self) -> int: ...


@lru_cache(maxsize=4096)
def divisors(count: int) -> tuple[int, ...]:
    """All divisors of a count, rising."""
    small = [degree for degree in range(1, isqrt(count) + 1) if count % degree == 0]
    return tuple(dict.fromkeys((*small, *(count // degree for degree in reversed(small)))))
