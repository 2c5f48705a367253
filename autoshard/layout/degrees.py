"""The degrees of a layout, whatever else of it is decided."""

from __future__ import annotations

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
