"""Counts what was dropped, by reason, and remembers the nearest miss of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from autoshard.plans.search_result import Rejection

MEMORY = "does not fit in memory"
SLOWER = "slower, by a bound"
UNPRICED = "not looked at in time"


@dataclass
class Tally:
    """Counts of the layouts that were looked at, of those that fit, and of those that were dropped, by reason. Mutable
    while a search runs."""

    considered: int = 0
    fitting: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    nearest: dict[str, tuple[float, str]] = field(default_factory=dict)

    def drop(self, reason: str, example: str, miss: float = 0.0, count: int = 1) -> None:
        """Count a layout, or `count` of them, as dropped for a reason. example: one of them in words. miss: by how much
        it missed, infinite where that is not known; the nearest miss is remembered, of equal ones the first."""
        self.considered += count
        self.counts[reason] = self.counts.get(reason, 0) + count
        if reason not in self.nearest or miss < self.nearest[reason][0]:
            self.nearest[reason] = (miss, example)

    def nearest_miss(self, reason: str) -> float:
        return self.nearest.get(reason, (inf, ""))[0]

    def keep(self, count: int) -> None:
        self.considered += count
        self.fitting += count

    def rejections(self) -> tuple[Rejection, ...]:
        """The reasons with their counts and nearest misses, the most frequent first."""
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return tuple(Rejection(reason, count, self.nearest[reason][1]) for reason, count in ranked)
