"""Cuts of one layout with two chunks a rank, as paths from rank to rank: what no path takes less than.

A state is (middle, i, j): the second chunks begin at `middle`, the rank's two stages at i and at j. An entry leads from
a state to one of the next rank: sizes of both stages, and their recompute sets. What a step takes at least by one rank
depends on its entry and, in sums, on those of the other ranks: the backwards in front of it and behind it, and what all
ranks recompute for one microbatch. The least of these sums is found by passes over all entries; with each pass there
are fewer that a faster step may have. It also depends on the longest stage of all, which is known (kind_split.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import NEVER_S
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


class Longest(NamedTuple):
    """Seconds that forward and backward of one stage take at least: of the longest one that all first microbatches, as
    many as there are ranks, go through before they go through second stages behind the ranks of `passed_by_all`."""

    forward_s: float
    backward_s: float


class Ways(NamedTuple):
    """Seconds of a step at least by a rank with an entry, along the four ways of `ChunkRoom.ways`, as if all other
    ranks recomputed nothing; and what the entry adds to that. front_s: to the backwards of the first chunks; back_s: to
    those of the second ones; more_s: to all. later_s: by how much more than the rank's own last backwards it takes, and
    then the way to the end, until all last microbatches have come through the longest stage."""

    alone_s: Array
    up_s: Array
    down_s: Array
    around_s: Array
    front_s: Array
    back_s: Array
    more_s: Array
    later_s: Array

    def take(self, places: Array) -> Ways:
        """These entries alone."""
        return Ways(*(column[places] for column in self))


class Ahead(NamedTuple):
    """Seconds that the ranks in front add at least, by state. front_s: to the backwards of their first chunks; more_s:
    to both."""

    front_s: Array
    more_s: Array


class Keys(NamedTuple):
    """Places of a rank's stages with sizes, (place, size) each. of_state: the place of each state. pair: of the rank's
    pairs, -1 where there is none. first, end: where the first stage begins and the second one ends."""

    of_state: Array
    pair: Array
    first: Array
    end: Array


Sizes = tuple[tuple[int, int], ...]
"""The fewest and the most blocks of first chunks, of second ones and of both together."""


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
            self.ways.take(places),
        )


class Paths:
    """All paths that a step below a limit may take."""

    def __init__(
        self,
        two: ChunkRoom,
        pairs: Sequence[Pairs],
        rows: Sequence[Rows],
        limit_s: float,
        longest: Longest,
        middles: range,
    ):
        """limit_s: of the pipeline. longest: of all cuts that count. middles: places where their second chunks begin.
        Raises TooMany where there are too many entries."""
        self._two, self._pairs, self._rows, self._limit_s, self._longest = two, pairs, rows, limit_s, longest
        self.ranks = self._all_entries(middles)

    def _all_entries(self, wanted: range) -> list[Entries]:
        """The entries on paths from the first to the last rank. wanted: places where second chunks may begin."""
        two, layers, width = self._two, self._two.layers, self._two.layers + 1
        middles = windows(two.pp, 2, layers, two.most, two.bare)[0][1]
        middles = middles[(middles >= wanted.start) & (middles < wanted.stop)]
        left, found, behind = MOST_ENTRIES, list[Entries](), self._behind_sizes()
        (fewest_1, most_1), (fewest_2, most_2), _ = behind[0]
        fewest, most = max(fewest_1, layers - most_2), min(most_1, layers - fewest_2)
        middles = middles[(middles >= fewest) & (middles <= most)]
        codes, ahead = middles * width**2 + middles, Ahead(*np.zeros((2, len(middles))))
        least, is_reached = np.full((2, width**3), inf), np.zeros(width**3, dtype=bool)  # emptied behind each rank
        for rank in range(two.pp):
            entries = self._entries(rank, codes, ahead, behind[rank + 1], left)
            found.append(entries)
            left -= len(entries.after)
            for of_all, of_states, own_s in zip(least, ahead, (entries.ways.front_s, entries.ways.more_s), strict=True):
                np.minimum.at(of_all, entries.after, of_states[entries.state] + own_s)
            is_reached[entries.after] = True
            codes = np.flatnonzero(is_reached)
            ahead = Ahead(*least[:, codes])
            least[:, codes], is_reached[codes] = inf, False
        codes, ranks = np.zeros(1, dtype=int), []
        for entries in reversed(found):  # `after` was a code
            places = np.minimum(np.searchsorted(codes, entries.after), max(len(codes) - 1, 0))
            alive = np.flatnonzero(codes[places] == entries.after) if len(codes) else np.zeros(0, dtype=int)
            ranks.append(entries.take(alive, places[alive]))
            codes = ranks[-1].codes
        return ranks[::-1]

    def _behind_sizes(self) -> list[Sizes]:
        """The fewest and the most blocks of each rank and those behind, of the first chunks, of the second ones and of
        both together; last, of no rank."""
        never, found = self._two.layers + 1, list[Sizes]([((0, 0),) * 3])
        for pairs, rows in zip(reversed(self._pairs), reversed(self._rows), strict=True):
            sizes = [self._two.contents.size[content[rows.pair]] for content in pairs.stages]
            found.append(
                tuple(
                    (fewest + int(size.min(initial=never)), most + int(size.max(initial=-never)))
                    for size, (fewest, most) in zip((*sizes, sum(sizes)), found[-1], strict=True)
                )
            )
        return found[::-1]

    def _entries(self, rank: int, codes: Array, ahead: Ahead, behind: Sizes, most: int) -> Entries:
        """The entries of one rank, whose `after` are codes. codes: of the states that paths may reach. ahead: what the
        ranks in front have, by state. behind: what `_behind_sizes` gives of the ranks behind."""
        pairs, rows, width = self._pairs[rank], self._rows[rank], self._two.layers + 1
        sizes, state, size, keys = self._steps(rank, codes, behind)
        # what is the same for all middles is looked at once
        key, used = keys.of_state[state] * sizes.shape[1] + size, np.zeros(keys.pair.size, dtype=bool)
        used[key] = True
        alike = (used.cumsum() - 1)[key]
        first, end, of_pair = (column.ravel()[used] for column in (keys.first, keys.end, keys.pair))
        begin = np.searchsorted(rows.pair, np.arange(len(pairs.size) + 1))
        key, row = spread(begin[of_pair], np.diff(begin)[of_pair])
        ways = self._ways(rank, first, end, key, row)
        inside = np.flatnonzero(self._seconds(ways) < self._limit_s)
        key, row, ways = key[inside], row[inside], ways.take(inside)
        begin = np.searchsorted(key, np.arange(len(first) + 1))
        count = np.diff(begin)[alike]
        if count.sum() > 2 * MOST_ENTRIES:
            raise TooMany
        old, entry = spread(begin[alike], count)
        inside = np.flatnonzero(self._on_the_way_s(ways, entry, ahead, state[old]) < self._limit_s)
        if len(inside) > most:
            raise TooMany
        old, entry = old[inside], entry[inside]
        state, both = state[old], sizes[:, size[old]]
        after = codes[state] + both[0] * width + both[1] if rank < self._two.pp - 1 else np.zeros_like(state)
        return Entries(codes, np.zeros(0, dtype=int), state, after, both, rows.sets[:, row[entry]], ways.take(entry))

    def _steps(self, rank: int, codes: Array, behind: Sizes) -> tuple[Array, Array, Array, Keys]:
        """(sizes of both stages, (stage, size); the states and their sizes that leave as many blocks as ranks behind
        may have; all places). Arguments as of `_entries`. Raises TooMany."""
        two, width, pairs = self._two, self._two.layers + 1, self._pairs[rank]
        content, sizes = two.ranges.content, two.contents.size
        place = np.full((len(sizes) + 1,) * 2, -1)  # behind the model's end there is nothing
        place[pairs.stages[0], pairs.stages[1]] = np.arange(len(pairs.size))
        begins, of_state = np.unique(codes % width**2, return_inverse=True)
        i, j, middle = begins // width, begins % width, codes // width**2
        n1, n2 = np.divmod(np.unique(sizes[pairs.stages[0]] * width + sizes[pairs.stages[1]]), width)
        if len(codes) * len(n1) > 8 * MOST_ENTRIES:
            raise TooMany
        pair = place[content[i[:, None], n1], content[j[:, None], n2]]
        may, left_1, left_2 = (pair >= 0)[of_state], middle - i[of_state], two.layers - j[of_state]
        blocks = zip((n1, n2, n1 + n2), (left_1, left_2, left_1 + left_2), behind, strict=True)
        for own, left, (fewest, most) in blocks:
            own, left = own.astype(np.int32), left.astype(np.int32)[:, None]
            may &= (own >= left - most) & (own <= left - fewest)
        state, size = np.nonzero(may)
        first, end = np.broadcast_to(i[:, None], pair.shape), j[:, None] + n2
        return np.stack([n1, n2]), state, size, Keys(of_state, pair, first, end)

    def _on_the_way_s(self, ways: Ways, entry: Array, ahead: Ahead, state: Array) -> Array:
        """`_seconds` of entries as far as the ranks in front are known."""
        until_s = np.maximum(ways.alone_s, ways.up_s)
        found: Array = np.maximum(
            until_s[entry] + ahead.front_s[state], (until_s + ways.later_s)[entry] + ahead.more_s[state]
        )
        return found

    def _ways(self, rank: int, first: Array, end: Array, key: Array, row: Array) -> Ways:
        """The ways of entries. first, end: where their first stage begins and where their second one ends, by key. key,
        row: by entry."""
        rows, beside = self._rows[rank], self._two.beside(rank, first, end)
        pairs = self._pairs[rank].take(rows.pair)
        own_s = self._two.ways(pairs, rows.both_s[:, None], rows.later_s[:, None])
        costs = [beside_s[key, 0] + way_s[row, 0] for beside_s, way_s in zip(beside.ways(), own_s, strict=True)]
        least_s = [of_stage[:, 0] for of_stage in pairs.least_backward_s]
        adds = [
            np.maximum(back_s - least, 0.0)
            for back_s, least in zip((*rows.backward_s, rows.both_s), (*least_s, sum(least_s)), strict=True)
        ]
        found = Ways._make([*costs, *(column[row] for column in adds), np.full(len(row), NEVER_S)])
        if min(pairs.held[0].min(), self._two.m.min()) < self._two.pp or pairs.held[1].min() < 1:
            return found
        filled_s, later_s = (
            through_s[key, 0] - before_s[key, 0] + wait_s[row]
            for through_s, before_s, wait_s in zip(
                self._two.through_s(rank, end), beside[:2], self._waits_s(pairs, rows, adds[2]), strict=True
            )
        )
        filled_s = np.maximum(filled_s, 0.0)
        return found._replace(alone_s=found.alone_s + filled_s, down_s=found.down_s + filled_s, later_s=later_s)

    def _waits_s(self, pairs: Pairs, rows: Rows, more_s: Array) -> tuple[Array, Array]:
        """How long the first microbatches take through a rank's second stage beside the first one of them, less all
        work of the warm-up, by row: forward, and, the other way round, backward. more_s: what a row adds to backward.

        Why: one after another they go through all stages up to that one, at the pace of the longest.
        """
        first, found = min(int(pairs.held[1].min()), self._two.pp), []
        is_behind = pairs.rank >= passed_by_all(self._pairs) - 1  # all that is counted in `longest` is on the way
        for longest_s, (one_s, other_s) in (
            (self._longest.forward_s, [of_chunk[:, 0] for of_chunk in pairs.forward_s]),
            (self._longest.backward_s, rows.backward_s),
        ):
            pace_s = np.maximum(longest_s if is_behind else one_s, other_s)
            found.append((first - 1) * pace_s - self._two.pp * one_s - first * other_s)
        return found[0], found[1] + more_s

    def _seconds(
        self,
        ways: Ways,
        front_s: Array | float = 0.0,
        back_s: Array | float = 0.0,
        more_s: float = 0.0,
        passed_s: Array | float = 0.0,
    ) -> Array:
        """Seconds of the pipeline at least, by entry. front_s: what the ranks in front add to the backwards of their
        first chunks; back_s: those behind of their second ones; more_s: all ranks to all backwards; passed_s: those in
        front to both, and those behind to the ones of their first chunks."""
        until_s, to_end_s = np.maximum(ways.alone_s, ways.up_s + back_s), np.maximum(front_s, ways.later_s + passed_s)
        found: Array = np.maximum.reduce([until_s + to_end_s, ways.down_s + more_s, ways.around_s + back_s + more_s])
        return found

    def _front(self, own: Sequence[Array]) -> list[Array]:
        """By rank, then entry: the least of what the ranks in front have together. own: by rank, then entry."""
        least, found = np.zeros(len(self.ranks[0].codes)), []
        for rank, (entries, of_rank) in enumerate(zip(self.ranks, own, strict=True)):
            found.append(least[entries.state])
            if rank < len(self.ranks) - 1:
                least = np.full(len(self.ranks[rank + 1].codes), inf)
                np.minimum.at(least, entries.after, found[-1] + of_rank)
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
            ways = [entries.ways for entries in self.ranks]
            fronts, backs, mores = (
                [getattr(one, name) + of for one, of in zip(ways, may, strict=True)]
                for name in ("front_s", "back_s", "more_s")
            )
            front = self._front(fronts)
            *back, _ = self._behind(backs, 0.0, np.add)
            more = self._behind(mores, 0.0, np.add)[-1]
            more_s = max(more_s, float(more.min(initial=inf)))
            *behind, _ = self._behind(fronts, 0.0, np.add)
            passed = [np.add(*both) for both in zip(self._front(mores), behind, strict=True)]
            costs_s = [
                self._seconds(one, front_s, back_s, more_s, passed_s) + of_rank
                for one, of_rank, front_s, back_s, passed_s in zip(ways, may, front, back, passed, strict=True)
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
            if not len(entry):
                return []
            cuts = np.concatenate([cuts[:, :, old], entries.sizes[:, None, entry]], axis=1)
            together = np.unique(np.vstack([cuts.reshape(-1, len(entry)), entries.after[entry]]), axis=1)
            if together.shape[1] > most:
                return None
            cuts, state = together[:-1].reshape(2, -1, together.shape[1]), together[-1]
        return [*cuts.transpose(2, 0, 1).reshape(cuts.shape[2], -1)]


def passed_by_all(pairs: Sequence[Pairs]) -> int:
    """How many ranks, from the first one on, run both stages for all of the first microbatches, as many as there are
    ranks, in their warm-up. pairs: by rank."""
    return sum(all(int(of_chunk.min()) >= len(pairs) for of_chunk in of_rank.held) for of_rank in pairs)


class TooMany(Exception):
    """There are more entries than are looked at."""


def spread(begin: Array, count: Array) -> tuple[Array, Array]:
    """(place of the range, number in it) of all numbers in ranges. begin, count: of each range."""
    places = np.repeat(np.arange(len(count)), count)
    return places, np.arange(len(places)) - np.repeat(count.cumsum() - count, count) + begin[places]
