"""Cuts of one layout with two chunks a rank, as paths from rank to rank: what no path takes less than.

A state is (middle, i, j): the second chunks begin at `middle`, the rank's two stages at i and at j. An entry leads from
a state to one of the next rank: sizes of both stages, and their recompute sets. What a step takes at least by one rank
depends on its entry and, in sums, on those of the other ranks: the backwards in front of it and behind it, and what all
ranks recompute for one microbatch. The least of these sums is found by passes over all entries; with each pass there
are fewer that a faster step may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.kind_pairs import ChunkRoom, Pairs, windows

MOST_ENTRIES = 600_000
"""With more entries, these are not looked at."""
MOST_STARTS = 4
"""So many cuts are offered to begin with."""
ROUNDS = 3
"""Passes of the sums."""
HALVINGS = 5
"""Steps that are tried between the bound and the limit: less fits in a shorter one, so its bound may be higher."""


class Rows(NamedTuple):
    """Choices of sets of one rank's pairs. pair: its place, growing. sets: those of both stages, (stage, row).
    backward_s: alike, of each stage. both_s, later_s: of both together, and as weighed by the passes behind the
    warm-up. Each may be the least of some choices alone."""

    pair: Array
    sets: Array
    backward_s: Array
    both_s: Array
    later_s: Array

    def take(self, places: Array) -> Rows:
        """These rows alone, in their order."""
        return Rows(
            self.pair[places],
            self.sets[:, places],
            self.backward_s[:, places],
            *(column[places] for column in self[3:]),
        )


class Ways(NamedTuple):
    """Seconds of a step at least by a rank with an entry, along the four ways of `ChunkRoom.costs`, as if all other
    ranks recomputed nothing; and what the entry adds to that. front_s: to the backwards of the first chunks; back_s: to
    those of the second ones; more_s: to all."""

    alone_s: Array
    up_s: Array
    down_s: Array
    around_s: Array
    front_s: Array
    back_s: Array
    more_s: Array


class Entries(NamedTuple):
    """Entries of one rank, by state. codes: of its states, growing. begin: the first entry of each state; behind the
    last one their number. state, after: places of the states that an entry leads from and to. sizes: of both stages,
    (stage, entry). sets: alike."""

    codes: Array
    begin: Array
    state: Array
    after: Array
    sizes: Array
    sets: Array
    ways: Ways

    def take(self, places: Array, after: Array) -> Entries:
        """These entries alone, with the states that they lead from. after: where they lead to."""
        alive, begin, state = np.unique(self.state[places], return_index=True, return_inverse=True)
        return Entries(
            self.codes[alive],
            np.append(begin, len(places)),
            state,
            after,
            self.sizes[:, places],
            self.sets[:, places],
            Ways(*(column[places] for column in self.ways)),
        )


class Paths:
    """All paths that a step below a limit may take."""

    def __init__(self, two: ChunkRoom, pairs: Sequence[Pairs], rows: Sequence[Rows], limit_s: float):
        """limit_s: of the pipeline. Raises TooMany where there are too many entries."""
        self._two, self._pairs, self._rows, self._limit_s = two, pairs, rows, limit_s
        self.ranks = self._all_entries()

    def _all_entries(self) -> list[Entries]:
        """The entries on paths from the first to the last rank."""
        two, layers, width = self._two, self._two.layers, self._two.layers + 1
        middles = windows(two.pp, 2, layers, two.most, two.bare)[0][1]
        codes, found, left = middles * width**2 + middles, [], MOST_ENTRIES
        sizes = [pairs.size for pairs in self._pairs]
        fewest, most = ([int(of(one)) if len(one) else width for one in sizes] for of in (np.min, np.max))
        for rank in range(two.pp):
            behind = layers - sum(most[rank + 1 :]), layers - sum(fewest[rank + 1 :])
            found.append(self._entries(rank, codes, behind, left))
            left -= len(found[-1].after)
            reached = np.zeros(width**3, dtype=bool)
            reached[found[-1].after] = True
            codes = np.flatnonzero(reached)
        codes, ranks = np.zeros(1, dtype=int), []
        for entries in reversed(found):  # `after` was a code
            places = np.minimum(np.searchsorted(codes, entries.after), max(len(codes) - 1, 0))
            alive = np.flatnonzero(codes[places] == entries.after) if len(codes) else np.zeros(0, dtype=int)
            ranks.append(entries.take(alive, places[alive]))
            codes = ranks[-1].codes
        return ranks[::-1]

    def _entries(self, rank: int, codes: Array, behind: tuple[int, int], most: int) -> Entries:
        """The entries of one rank, whose `after` are codes. codes: of the states that paths may reach. behind: the
        fewest and the most blocks of this rank and those in front."""
        two, width, pairs, rows = self._two, self._two.layers + 1, self._pairs[rank], self._rows[rank]
        content, contents = two.ranges.content, two.contents
        place = np.full((len(contents.size) + 1,) * 2, -1)  # behind the model's end there is nothing
        place[pairs.stages[0], pairs.stages[1]] = np.arange(len(pairs.size))
        begins, of_state = np.unique(codes % width**2, return_inverse=True)
        i, j, middle = begins // width, begins % width, codes // width**2
        if rank < two.pp - 1:
            both = np.unique(contents.size[pairs.stages[0]] * width + contents.size[pairs.stages[1]])
            n1, n2 = (of_both[None] for of_both in np.divmod(both, width))
            if len(codes) * n1.size > 8 * MOST_ENTRIES:
                raise TooMany
            fits = place[content[i[:, None], n1], content[j[:, None], n2]] >= 0
            end_1, end_2 = i[:, None] + n1, j[:, None] + n2
            blocks = (end_1 + end_2)[of_state] - middle[:, None]
            may = fits[of_state] & (blocks >= behind[0]) & (blocks <= behind[1])
            state, size = np.nonzero(may & (end_1[of_state] <= middle[:, None]))
            n1, n2 = n1[0, size], n2[0, size]
        else:
            state, n1, n2 = np.arange(len(codes)), middle - i[of_state], two.layers - j[of_state]
            inside = np.flatnonzero((n1 >= 0) & (n1 <= two.most) & (n2 >= 0) & (n2 <= two.most))
            state, n1, n2 = state[inside], n1[inside], n2[inside]
        # what is the same for all middles is looked at once
        keys, alike = np.unique((of_state[state] * width + n1) * width + n2, return_inverse=True)
        i, j, x, y = i[keys // width**2], j[keys // width**2], keys // width % width, keys % width
        of_pair = place[content[i, x], content[j, y]]
        begin = np.searchsorted(rows.pair, np.arange(len(pairs.size) + 1))
        key, row = spread(np.append(begin, 0)[of_pair], np.append(np.diff(begin), 0)[of_pair])
        ways = self._ways(rank, i[key], (j + y)[key], rows.take(row))
        may = np.flatnonzero(self._seconds(ways) < self._limit_s)
        key, row, ways = key[may], row[may], Ways(*(column[may] for column in ways))
        begin = np.searchsorted(key, np.arange(len(keys) + 1))
        if np.diff(begin)[alike].sum() > most:
            raise TooMany
        old, entry = spread(begin[alike], np.diff(begin)[alike])
        state, sizes = state[old], np.stack([n1[old], n2[old]])
        after = codes[state] + sizes[0] * width + sizes[1] if rank < two.pp - 1 else np.zeros_like(state)
        return Entries(
            codes,
            np.zeros(0, dtype=int),
            state,
            after,
            sizes,
            rows.sets[:, row[entry]],
            Ways(*(column[entry] for column in ways)),
        )

    def _ways(self, rank: int, first: Array, end: Array, rows: Rows) -> Ways:
        """The ways of entries. first, end: where their first stage begins and where their second one ends."""
        pairs = self._pairs[rank].take(rows.pair)
        costs = self._two.ways(pairs, self._two.beside(rank, first, end), rows.both_s[:, None], rows.later_s[:, None])
        least_s = [of_stage[:, 0] for of_stage in pairs.least_backward_s]
        more_s = rows.both_s - sum(least_s)
        front_s, back_s = (back - least for back, least in zip(rows.backward_s, least_s, strict=True))
        return Ways(
            *(column[:, 0] for column in costs), *(np.maximum(column, 0.0) for column in (front_s, back_s, more_s))
        )

    def _seconds(
        self, ways: Ways, front_s: Array | float = 0.0, back_s: Array | float = 0.0, more_s: float = 0.0
    ) -> Array:
        """Seconds of the pipeline at least, by entry. front_s: what the ranks in front add to the backwards of their
        first chunks; back_s: those behind of their second ones; more_s: all ranks to all backwards."""
        found: Array = np.maximum.reduce(
            [
                ways.alone_s + front_s,
                ways.up_s + front_s + back_s,
                ways.down_s + more_s,
                ways.around_s + back_s + more_s,
            ]
        )
        return found

    def _front(self, may: Sequence[Array]) -> list[Array]:
        """By rank, then entry: what the ranks in front add at least. may: of each entry, 0 or infinite."""
        least, found = np.zeros(len(self.ranks[0].codes)), []
        for rank, entries in enumerate(self.ranks):
            found.append(least[entries.state])
            if rank < len(self.ranks) - 1:
                least = np.full(len(self.ranks[rank + 1].codes), inf)
                np.minimum.at(least, entries.after, found[-1] + entries.ways.front_s + may[rank])
        return found

    def _behind(self, own: Sequence[Array], end: float, joined: np.ufunc) -> list[Array]:
        """By rank, then entry: the least of what the ranks behind have together, by sum or by the largest; last, of all
        ranks, by state. own: by rank, then entry. end: of no rank."""
        least, found = np.array([end]), []
        for entries, of_rank in zip(reversed(self.ranks), reversed(own), strict=True):
            found.append(least[entries.after])
            of_entries = joined(of_rank, found[-1])
            least = np.minimum.reduceat(of_entries, entries.begin[:-1]) if len(of_entries) else np.zeros(0)
        return [*found[::-1], least]

    def costs(self, limit_s: float) -> list[Array]:
        """By rank, then entry: seconds of the pipeline at least; infinite where no path takes less than the limit."""
        more_s, costs_s = 0.0, [self._seconds(entries.ways) for entries in self.ranks]
        for _ in range(ROUNDS):
            may = [np.where(of_rank < limit_s, 0.0, inf) for of_rank in costs_s]
            front = self._front(may)
            ways = [entries.ways for entries in self.ranks]
            *back, _ = self._behind([one.back_s + of for one, of in zip(ways, may, strict=True)], 0.0, np.add)
            more = self._behind([one.more_s + of for one, of in zip(ways, may, strict=True)], 0.0, np.add)[-1]
            more_s = max(more_s, float(more.min(initial=inf)))
            costs_s = [
                self._seconds(one, front_s, back_s, more_s) + of_rank
                for one, of_rank, front_s, back_s in zip(ways, may, front, back, strict=True)
            ]
        return costs_s

    def values(self, limit_s: float) -> tuple[float, list[Array]]:
        """(seconds of the pipeline that no path below the limit takes less than, by rank, then entry: those of paths
        with this entry, as far as the ranks behind go)."""
        costs_s = self.costs(limit_s)
        *behind, of_all = self._behind(costs_s, -inf, np.maximum)
        values = [np.maximum(*both) for both in zip(costs_s, behind, strict=True)]
        return float(of_all.min(initial=inf)), values

    def bound_s(self, limit_s: float) -> float:
        """Seconds of the pipeline that no path takes less than, as far as they are below a limit."""
        low_s, high_s = self.values(limit_s)[0], limit_s
        for _ in range(HALVINGS):
            if low_s >= high_s:
                break
            middle_s = (low_s + high_s) / 2
            found_s = self.values(middle_s)[0]
            low_s = max(low_s, min(found_s, middle_s))
            if found_s < middle_s:
                high_s = middle_s
        return min(low_s, limit_s)

    def cuts(self) -> list[Array]:
        """Cuts with the least values, of some middles, (blocks of each virtual stage,)."""
        _, values = self.values(self._limit_s)
        if not len(values[0]):
            return []
        of_middles, found = np.minimum.reduceat(values[0], self.ranks[0].begin[:-1]), []
        for state in of_middles.argsort(kind="stable")[:MOST_STARTS].tolist():
            if not np.isfinite(of_middles[state]):
                break
            sizes = []
            for entries, of_rank in zip(self.ranks, values, strict=True):
                begin, end = entries.begin[state : state + 2]
                entry = int(begin + of_rank[begin:end].argmin())
                sizes.append(entries.sizes[:, entry])
                state = int(entries.after[entry])
            found.append(np.stack(sizes, axis=1).ravel())
        return found

    def cuts_below(self, limit_s: float, most: int) -> list[Array] | None:
        """All cuts that may take less than a limit; None where there are more than `most`."""
        _, values = self.values(limit_s)
        state = np.arange(len(self.ranks[0].codes))
        cuts = np.zeros((2, 0, len(state)), dtype=int)
        for entries, of_rank in zip(self.ranks, values, strict=True):
            count = np.diff(entries.begin)[state]
            if count.sum() > MOST_ENTRIES:
                return None
            old, entry = spread(entries.begin[state], count)
            left = np.flatnonzero(of_rank[entry] < limit_s)
            old, entry = old[left], entry[left]
            cuts = np.concatenate([cuts[:, :, old], entries.sizes[:, None, entry]], axis=1)
            together = np.unique(np.vstack([cuts.reshape(-1, len(entry)), entries.after[entry]]), axis=1)
            if together.shape[1] > most:
                return None
            cuts, state = together[:-1].reshape(2, -1, together.shape[1]), together[-1]
        return [*cuts.transpose(2, 0, 1).reshape(cuts.shape[2], -1)]


class TooMany(Exception):
    """There are more entries than are looked at."""


def paths_below(two: ChunkRoom, pairs: Sequence[Pairs], limit_s: float, rows: Sequence[Rows]) -> Paths | None:
    """The paths of `Paths`; None where there are too many."""
    try:
        return Paths(two, pairs, rows, limit_s)
    except TooMany:
        return None


def spread(begin: Array, count: Array) -> tuple[Array, Array]:
    """(place of the range, number in it) of all numbers in ranges. begin, count: of each range."""
    places = np.repeat(np.arange(len(count)), count)
    return places, np.arange(len(places)) - np.repeat(count.cumsum() - count, count) + begin[places]
