"""Bounds of layouts whose blocks are of several kinds, with one chunk a rank, for many layouts of a family at once.

With alternating schedules every step takes the work W of one microbatch in all stages and something beside it that
grows with the work behind a rank (`Terms`). So the least W of all cuts with no more than M beside it is found by one
pass from the last rank to the first. Where weight gradients are put off, a pass finds the cut whose slowest rank is
fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import NEVER_S
from autoshard.planner.grid.kind_stages import Ranges, Stages, longest, ranges, stages_of, upto_s
from autoshard.planner.grid.whole import Whole
from autoshard.schedules.held import warm_ups

MOST_PASSES = 6
"""Passes that narrow down what may be beside W, at most."""
CLOSE = 1e-9
"""Share of a step by which a bound meets it."""
FindStages = Callable[[Whole, Array, Sequence[Sequence[int]], float, Ranges], Stages]
"""As `stages_of`."""


class StageTimes:
    """Every range of blocks as each stage of some drafts: arrays are (draft, rank, first block, blocks) unless said
    otherwise; seconds are infinite where a stage does not fit.

    sets: by draft, the places that `stages.chosen` counts. m, hop_s: by draft. ok: whether a stage fits, and has blocks
    or may have none. warm: forwards before the first backward, (draft, rank).
    """

    def __init__(self, whole: Whole, drafts: Array, limit_bytes: float, limit_s: float, find: FindStages = stages_of):
        """limit_s: only steps that take less are of interest. find: the stages, or what they take at least."""
        self.whole, self.limit_s, family, every = whole, limit_s, whole.family, whole.problem.blocks
        self.pp, self.layers = family.pp, len(every.kind_of)
        self.m, self.hop_s = whole.count[drafts], whole.hop_s[drafts]
        self.sets = [whole.useful_sets(draft) for draft in drafts.tolist()]
        most = min(self.layers, self.layers - self.pp + 1 + 2 * whole.bare_ends)
        most = longest(self.m * upto_s(whole, drafts, self.sets), most, limit_s)
        self.ranges = ranges(every, most, in_order=True)
        self.stages = find(whole, drafts, self.sets, limit_bytes, self.ranges)
        self._shorten()
        self._pad = [(0, 0), (0, 0), (0, 1)]
        content = self.ranges.content
        forward_s, backward_s, self.after_s = (
            np.pad(seconds, self._pad, constant_values=inf)[..., content]
            for seconds in (self.stages.forward_s, self.stages.backward_s, self.stages.after_s)
        )
        self.ok = np.isfinite(backward_s)
        self.ok[:, 1 if whole.bare_ends else 0 : -1 if whole.bare_ends else None, :, 0] = False
        self.forward_s, self.backward_s = (np.where(self.ok, seconds, inf) for seconds in (forward_s, backward_s))
        self.both_s = self.forward_s + self.backward_s
        self.warm = np.array([warm_ups(family.rules, self.pp, m, 1) for m in self.m.tolist()])
        self.after_behind_s = self.least(self.after_s, self.ok, np.maximum)

    def _shorten(self) -> None:
        """Leave out ranges that are so long that a rank would work on them longer than the limit."""
        least_s = (self.m[:, None] * (self.stages.forward_s + self.stages.backward_s).min(1)).min(0)
        content = self.ranges.content
        worth = np.flatnonzero(((content >= 0) & (np.append(least_s, inf)[content] < self.limit_s)).any(0))
        most = int(worth.max(initial=1))
        self.ranges = self.ranges._replace(content=content[:, : most + 1], end=self.ranges.end[:, : most + 1])

    @property
    def after_least_s(self) -> Array:
        """Seconds that follow the pipeline at least, by draft; infinite where no cut fits."""
        return self.after_behind_s[0][:, 0]

    def last(self, at_end: float) -> Array:
        """Seconds behind the last rank, (draft, first block): at_end at the model's end, else infinite."""
        behind = np.full((len(self.m), self.layers + 2), inf)
        behind[:, self.layers] = at_end
        return behind

    def least(self, seconds: Array, allowed: Array, joined: np.ufunc) -> list[Array]:
        """By rank, then (draft, first block): the least of what this rank and those behind it take together, by sum or
        by the largest."""
        least = [self.last(0.0 if joined is np.add else -inf)]
        for rank in range(self.pp - 1, -1, -1):
            fits = allowed[:, rank] & self.ok[:, rank]
            of_stage = np.where(fits, joined(seconds[:, rank], least[-1][:, self.ranges.end]), inf)
            least.append(ended(of_stage.min(2)))
        return least[::-1]

    def before(self, seconds: Array, floor_s: Array | None = None) -> list[Array]:
        """By rank, then (draft, first block): the least of what the ranks in front take together; last, of all ranks.
        seconds: infinite where a stage does not fit. floor_s: of a rank, what those in front of it count at least."""
        count = self.ranges.end.shape[1]
        blocks = np.arange(count)
        first = np.arange(self.layers + 1)[:, None] - blocks  # of the range that ends at each place
        inside, first = first >= 0, np.maximum(first, 0)
        least = [np.full((len(self.m), self.layers + 2), inf)]
        least[0][:, 0] = 0.0
        for rank in range(self.pp):
            in_front = least[-1][:, first]
            if floor_s is not None:
                in_front = np.maximum(in_front, floor_s[:, rank][:, first, blocks])
            of_stage = in_front + seconds[:, rank][:, first, blocks]
            least.append(ended(np.where(inside, of_stage, inf).min(2)))
        return least


def ended(seconds: Array) -> Array:
    """Seconds by (draft, first block) with the place behind the model's end, at which no cut fits."""
    return np.concatenate([seconds, np.full((len(seconds), 1), inf)], axis=1)


class Terms(NamedTuple):
    """Seconds of a step at least beside the work W of one microbatch, transfers included, as arrays of `StageTimes`.

    own_s: whatever is behind. around_s: with the work behind the rank. trips, trip_s, rest_s: round trips to the last
    rank, what each takes beside the work behind, and what is left of the rank's own work, with 1f1b's warm-ups.
    alone_s: of the whole step.
    """

    own_s: Array
    around_s: Array
    trips: Array
    trip_s: Array
    rest_s: Array
    alone_s: Array


class AlternatingTimes(StageTimes):
    """Stages of schedules that alternate forwards and backwards."""

    @cached_property
    def in_turns(self) -> Array:
        """Whether warm-ups are those of 1f1b, by draft."""
        ahead = np.minimum(self.pp - np.arange(self.pp), self.m[:, None])
        found: Array = (self.warm == ahead).all(1)
        return found

    @property
    def ways_s(self) -> Array:
        """Transfers of one microbatch up and down, by draft."""
        return 2 * (self.pp - 1) * self.hop_s

    @cached_property
    def terms(self) -> Terms:
        """Seconds of a step beside W, by stage."""
        pp, warm = self.pp, self.warm[:, :, None, None]
        m, hop_s = (column[:, None, None, None] for column in (self.m, self.hop_s))
        rank = np.arange(pp)[:, None, None]
        both_s = np.where(self.ok, self.both_s, 0.0)
        longer_s = np.where(self.ok, np.maximum(self.forward_s, self.backward_s), 0.0)
        at_once = np.broadcast_to(self.whole.family.is_at_once(self.m), self.m.shape)[:, None, None, None]
        own_s = np.where(at_once, (m - 1) * both_s, (warm - 1) * longer_s + (m - warm) * both_s)
        there_s = 2 * (pp - 1 - rank) * hop_s
        around_s = np.where(warm < m, (m - warm) * both_s + there_s, NEVER_S)
        trips, rest = np.divmod(m - 1, pp - rank)
        trips, rest = (np.where(self.in_turns[:, None, None, None] & (hop_s > 0), some, 0) for some in (trips, rest))
        before_s = np.stack(self.before(self.both_s)[:-1], axis=1)[:, :, :-1, None]
        alone_s = before_s + m * self.both_s + 2 * rank * hop_s
        trips = np.broadcast_to(trips, both_s.shape)
        rest_s = np.where(trips > 0, rest * both_s, 0.0)  # else the rank waits for no trip, and own_s has it all
        return Terms(own_s, around_s, trips, both_s + there_s, rest_s, alone_s)

    def beside_s(self, at: tuple[Array | int | slice, ...], behind_s: Array) -> Array:
        """Seconds of a step beside W, by the terms of some stages. at: their places. behind_s: work behind each."""
        own_s, around_s, trips, trip_s, rest_s = (term[at] for term in self.terms[:5])
        beside_s = np.maximum(own_s, around_s + behind_s)
        if trips.any():
            finite_s = np.where(np.isfinite(behind_s), behind_s, 0.0)
            beside_s = np.maximum(beside_s, trips * (trip_s + finite_s) + rest_s)
        return beside_s

    def within(self, rows: Array, most_s: Array, below_s: Array, chosen: list[Array] | None = None) -> list[Array]:
        """By rank, then (row, first block): the least work of one microbatch from there on, where no more than most_s
        is beside W. rows: some drafts. most_s, below_s: by row; a rank that takes below_s alone is left out. chosen: is
        given the blocks of each stage, by rank from the last one on."""
        most_s, below_s = most_s[:, None, None], below_s[:, None, None]
        least, narrow, is_limited = [self.last(0.0)[rows]], np.isfinite(most_s).any(), np.isfinite(below_s).any()
        for rank in range(self.pp - 1, -1, -1):
            behind_s = least[-1][:, self.ranges.end]
            may = self.ok[rows, rank]
            if is_limited:  # else the terms, which take long, tell of nothing
                may &= self.terms.alone_s[rows, rank] < below_s
            if narrow:
                may &= self.beside_s((rows, rank), behind_s) <= most_s
            of_stage = np.where(may, self.both_s[rows, rank] + behind_s, inf)
            if chosen is not None:
                chosen.append(of_stage.argmin(2))
            least.append(ended(of_stage.min(2)))
        return least[::-1]

    def least_beside_s(self, work_s: Array) -> Array:
        """Seconds beside W that no cut has less than, by draft. work_s: of one microbatch in all stages at least.

        Why: where ranks wait for those behind, some rank has its share of all work beside W.
        """
        share = (1 - CLOSE) * (self.m - 1) / self.pp
        waits = self.in_turns & (self.m > self.pp)
        return np.where(waits, share * np.where(np.isfinite(work_s), work_s - self.ways_s, 0.0), 0.0)

    def at_least_s(self) -> Array:
        """Seconds that no cut takes less than, by draft; no more than the limit.

        Why: no cut that is fast enough has more beside W than the least W leaves of the limit; the least W of those
        that have no more may be more.
        """
        fits = np.isfinite(self.after_least_s)
        below_s = np.where(fits, self.limit_s - np.where(fits, self.after_least_s, 0.0), -inf)
        work_s, most_s = np.zeros(len(self.m)), np.full(len(self.m), inf)
        rows, low_s = np.arange(len(self.m)), np.zeros(len(self.m))
        for turn in range(MOST_PASSES):
            found_s = self.within(rows, most_s[rows], below_s[rows])[0][:, 0] + self.ways_s[rows]
            more = found_s > work_s[rows]
            work_s[rows], fits = found_s, np.isfinite(found_s)
            most_s[rows] = np.where(fits, below_s[rows] - np.where(fits, found_s, 0.0), -inf)
            if not turn:
                low_s = self.least_beside_s(work_s)
            rows = rows[more & (most_s[rows] > low_s[rows])]
            if not len(rows):
                break
        fits = np.isfinite(self.after_least_s)
        least_s = np.where(fits, np.minimum(work_s + low_s, below_s), self.limit_s)
        return least_s + np.where(fits, self.after_least_s, 0.0)


class WeightsApartTimes(StageTimes):
    """Stages of schedules that put off gradients of weights."""

    @cached_property
    def weights_s(self) -> Array:
        """Seconds of backward that may be put off."""
        return np.pad(self.stages.weights_s, self._pad)[..., self.ranges.content]

    @cached_property
    def of_ranks_s(self) -> list[Array]:
        """Seconds of the pipeline at least, by rank, then (draft, first block, blocks).

        Why: a rank waits for its first forward, and before its first backward for microbatch 0 to go through all stages
        and back. Then it has work for all microbatches, and after its last forward the last one goes through the stages
        behind and back. Its last backward goes down through all ranks in front, of which each has put off some weight
        gradients until then. What others take at least follows from where its stage begins and ends.
        """
        pp, end = self.pp, self.ranges.end
        m, hop_s = (column[:, None, None] for column in (self.m, self.hop_s))
        input_s = self.backward_s - self.weights_s
        behind_s, around_s = (self.least(some, self.ok, np.add) for some in (input_s, self.forward_s + input_s))
        waiting = np.minimum(np.arange(pp), self.m[:, None] - 1)[:, :, None, None]
        put_off_s = (waiting + 1) * self.weights_s
        before_s, drained_s = self.before(self.forward_s), self.before(input_s + hop_s[..., None], put_off_s)
        all_forward_s = before_s[pp][:, self.layers, None, None] + (pp - 1) * hop_s
        found = []
        for rank in range(pp):
            ok, weights_s, warm = self.ok[:, rank], self.weights_s[:, rank], self.warm[:, rank, None, None]
            forward_s, back_s = (np.where(ok, seconds[:, rank], 0.0) for seconds in (self.forward_s, input_s))
            there_s = (pp - 1 - rank) * hop_s
            filled_s = before_s[rank][:, :-1, None] + rank * hop_s + warm * forward_s
            start_s = np.maximum(filled_s, all_forward_s + behind_s[rank + 1][:, end] + there_s) + back_s
            own_s = start_s + (m - warm) * forward_s + (m - 1) * back_s + (m - 1 - waiting[:, rank]) * weights_s
            turns = np.maximum(m - 1 - warm, 0)
            turns_s = turns * (forward_s + back_s) + np.maximum(turns - max(0, rank - 1), 0) * weights_s
            filled_s = np.where(m > warm, start_s + turns_s + forward_s, filled_s)
            last_s = filled_s + around_s[rank + 1][:, end] + 2 * there_s + back_s
            drain_s = np.maximum(put_off_s[:, rank], drained_s[rank][:, :-1, None])
            found.append(np.where(ok, np.maximum(own_s, last_s) + drain_s, inf))
        return found

    def worst_s(self, chosen: list[Array] | None = None) -> list[Array]:
        """By rank, then (draft, first block): seconds of the pipeline by the worst rank from there on, at least.
        chosen: as `AlternatingTimes.within` has it."""
        worst = [self.last(-inf)]
        for of_rank_s in self.of_ranks_s[::-1]:
            of_stage = np.maximum(of_rank_s, worst[-1][:, self.ranges.end])
            if chosen is not None:
                chosen.append(of_stage.argmin(2))
            worst.append(ended(of_stage.min(2)))
        return worst[::-1]

    def at_least_s(self) -> Array:
        """Seconds that no cut takes less than, by draft; infinite where none fits."""
        return self.worst_s()[0][:, 0] + self.after_least_s
