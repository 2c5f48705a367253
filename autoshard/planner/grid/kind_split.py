"""Cuts of one layout with two chunks a rank, in parts by their longest stage: what no cut takes less than.

The first microbatches, as many as there are ranks, go through all first chunks before they go through second ones, one
after another, at the pace of the longest of these stages; the last ones come back in the same way. How long that takes
is known in a part: where the longest stage is short, few cuts hold all blocks, and where it is long, the way takes
long. Parts are halved while some cut of theirs may take less than the best one that is known, and less than what is
left open anyway: of other parts, but for the first few, some good cuts are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.kind_pairs import ChunkRoom, Pairs
from autoshard.planner.grid.kind_paths import MOST_ENTRIES, Longest, Paths, Rows, TooMany, passed_by_all

CLOSE = 0.005
"""Stages are as long as each other where that changes the way by less than this share of a step."""
MOST_PARTS = 150
"""So many parts are looked at, each for some hundredths of a second."""
MOST_EFFORT = 80_000_000
"""With more entries of paths in all parts, times ranks, no further part is looked at: some seconds."""
MOST_IDLE_EFFORT = 5_000_000
"""So many where the parts that are left are idle, and some cuts have been tried. All that was found in idle parts of
the 200 problems of benchmarks.planner_problems was found with a fifth of them."""
FIRST_PARTS = 16
"""So many parts are halved though they are idle: good cuts are found in their halves (1.6 % of a step in one of the 200
problems of benchmarks.planner_problems), in no time to speak of."""


class Part(NamedTuple):
    """Some cuts. first, end: the range of their longest backward among those of all stages that count. low, high: the
    range of the blocks of all their first chunks."""

    first: int
    end: int
    low: int
    high: int

    def by_longest(self) -> list[Part]:
        """The part as two by the longest stage; itself where that is known."""
        middle = (self.first + self.end) // 2
        return [self._replace(end=middle), self._replace(first=middle)] if middle > self.first else [self]

    def by_blocks(self) -> list[Part]:
        """The part as two by the blocks of first chunks; itself where these are known."""
        middle = (self.low + self.high) // 2
        return [self._replace(high=middle), self._replace(low=middle)] if middle > self.low else [self]


class SplitCuts:
    """The cuts of one layout in parts."""

    def __init__(self, two: ChunkRoom, pairs: Sequence[Pairs], rows: Sequence[Rows]):
        """pairs, rows: by rank, as of `Paths`."""
        self._two, self._pairs, self._rows = two, pairs, rows
        counted = passed_by_all(pairs)  # of these ranks second stages count too
        self._stages_s = [
            (
                np.stack([of_chunk[of_rank.pair, 0] for of_chunk in one.forward_s[: 1 + (one.rank < counted)]]),
                of_rank.backward_s[: 1 + (one.rank < counted)],
            )
            for one, of_rank in zip(pairs, rows, strict=True)
        ]
        self._different_s = np.unique(np.concatenate([backward_s.ravel() for _, backward_s in self._stages_s]))
        self._left = list[tuple[float, Part]]()
        self.parts = self.effort = 0
        """Parts that were looked at, and entries of their paths, times ranks."""
        self._has_tried = False

    def _paths(self, part: Part, limit_s: float) -> Paths:
        """The paths of a part below a limit. Raises TooMany."""
        shortest_s, longest_s = self._different_s[part.first], self._different_s[part.end - 1]
        rows, forward_at_least_s = [], inf
        for of_rank, (forward_s, backward_s) in zip(self._rows, self._stages_s, strict=True):
            rows.append(of_rank.take(np.flatnonzero((backward_s <= longest_s).all(0))))
            is_long = (shortest_s <= backward_s) & (backward_s <= longest_s)
            forward_at_least_s = min(forward_at_least_s, float(forward_s[is_long].min(initial=inf)))
        longest = Longest(forward_at_least_s, float(shortest_s))
        return Paths(self._two, self._pairs, rows, limit_s, longest, range(part.low, part.high))

    def _is_wide(self, part: Part, limit_s: float) -> bool:
        spread_s = self._different_s[part.end - 1] - self._different_s[part.first]
        return bool((self._two.pp - 1) * spread_s > CLOSE * limit_s)

    def solve(self, limit_s: float, tried: Callable[[Sequence[Array]], float], open_s: float = inf) -> float:
        """Seconds of the pipeline that no cut takes less than, as far as they are below a limit. tried: tries cuts, and
        returns the limit then. open_s: another layout, which is left open, may take as little.

        A part behind the first ones is idle where another one is left, or another layout, that may take less: what is
        known of the whole becomes no more by what is known of it."""
        whole = Part(0, len(self._different_s), 0, self._two.layers + 1)
        queue = [(0.0, whole)] if len(self._different_s) else []
        while queue:  # short stages come first: good cuts are even
            bound_s, part = queue.pop()
            if bound_s >= limit_s:
                continue
            least_left_s = min([open_s, *(least_s for least_s, _ in self._left)])
            most_effort = MOST_IDLE_EFFORT if bound_s >= least_left_s and self._has_tried else MOST_EFFORT
            self.parts += 1
            if self.parts > MOST_PARTS or self.effort > most_effort:
                self._left.append((bound_s, part))
                continue
            try:
                paths = self._paths(part, limit_s)
            except TooMany:
                self.effort += self._two.pp * MOST_ENTRIES
                halves = part.by_blocks()
            else:
                self.effort += self._two.pp * sum(len(entries.after) for entries in paths.ranks)
                bound_s = max(bound_s, paths.values(limit_s)[0])
                if bound_s >= limit_s:
                    continue
                is_idle = self.parts > FIRST_PARTS and bound_s >= least_left_s
                halves = part.by_longest() if self._is_wide(part, limit_s) and not is_idle else [part]
                if len(halves) == 1:
                    limit_s, self._has_tried = tried(paths.cuts()), True
                    bound_s = bound_s if is_idle else max(bound_s, paths.bound_s(limit_s))
            if len(halves) == 1:
                self._left.append((bound_s, part))
            else:
                queue += [(bound_s, half) for half in reversed(halves)]
        self._left = [one for one in self._left if one[0] < limit_s]
        return min([limit_s, *(bound_s for bound_s, _ in self._left)])

    def cuts_below(self, limit_s: float, most: int) -> list[Array] | None:
        """All cuts that may take less than a limit, no higher than that of `solve`; None where there are more than
        `most`."""
        found = list[Array]()
        for _, part in self._left:
            try:
                cuts = self._paths(part, limit_s).cuts_below(limit_s, most - len(found))
            except TooMany:
                return None
            if cuts is None:
                return None
            found += cuts
        return found
