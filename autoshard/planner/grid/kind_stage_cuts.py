"""The best cut of one layout whose blocks are of several kinds, with one chunk a rank: proven.

The beginnings of all cuts that may be faster than the limit are listed, rank by rank; of the few cuts that are left,
nearly all are ruled out by their round trips. Where the limit is too loose for that, a good cut is found first: by the
least sum of the work W of one microbatch and what is beside it (`kind_stage_times.Terms`), in halves of an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import SAME, Found, TimedChoice, fastest
from autoshard.planner.grid.kind_stage_times import CLOSE, AlternatingTimes, StageTimes, WeightsApartTimes
from autoshard.planner.grid.rank_trips import apart_round_trips_at_least_s, round_trips_at_least_s
from autoshard.planner.grid.stage_cuts import moves
from autoshard.planner.grid.whole import Whole
from autoshard.schedules import Work, at_least_s, step_time_s

MOST_BEGINNINGS = 100_000
"""With more beginnings of cuts at once, the listing stops, and what is proven is a bound."""
FEW_BEGINNINGS = 2_000
"""If there are no more, these are listed before a good cut is known."""
MOST_LISTED = 3_000
"""With more cuts that may be the best where weight gradients are put off, these are not listed."""
MOST_HALVINGS = 60
"""Passes of the halving."""
MOST_ROUNDS = 30
"""Rounds in which a block is moved from one stage to another, where nothing is listed."""


class Beginnings(NamedTuple):
    """Beginnings of cuts, an entry each, as far as bounds need them.

    forward_s, backward_s: of one microbatch in all stages so far; most_forward_s, most_backward_s: in the slowest one.
    beside_s: the largest of `Terms` of these ranks. The others are ways through the step that stay at one rank for all
    its microbatches between warm-up and end. Before, they wait for a first backward: they go up to this rank or one
    behind, wait there for its warm-up, and come back; at the end the same in reverse. open_s: both turns are behind;
    up_s: the first one is, the last one is known; down_s: the last one is; turned_s: neither is. after_s: behind the
    pipeline. last_s: of the last stage.
    """

    forward_s: Array
    backward_s: Array
    most_forward_s: Array
    most_backward_s: Array
    beside_s: Array
    open_s: Array
    up_s: Array
    down_s: Array
    turned_s: Array
    after_s: Array
    last_s: Array

    def take(self, rows: Array) -> Beginnings:
        """These alone, in their order."""
        return Beginnings(*(column[rows] for column in self))


class OneChunkCuts:
    """Cuts of one draft with one chunk a rank, (blocks of each stage,), with bounds and step times."""

    def __init__(self, whole: Whole, draft: int, times: StageTimes, round_trips: Callable[[Work], Array] | None = None):
        """times: of this draft alone. round_trips: the bound of rank_trips.py, where it may be the higher one."""
        self._whole, self._draft, self._limit_s, self._ranges = whole, draft, times.limit_s, times.ranges
        self._pp, self._layers = times.pp, times.layers
        self._m, self._hop_s = int(times.m[0]), float(times.hop_s[0])
        self._ok, self._after_s, self._forward_s, self._backward_s = (
            column[0] for column in (times.ok, times.after_s, times.forward_s, times.backward_s)
        )
        self._sets, self._chosen = times.sets[0], times.stages.chosen[0]
        self._weights_s: Array | None = None
        self._round_trips = round_trips

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        """Seconds that steps take at least, by cut; infinite where a stage does not fit."""
        found = np.full(len(choices), inf)
        rank, first, blocks = self._places(choices)
        inside = (blocks < self._ok.shape[2]).all(0)
        fits = np.flatnonzero(inside)[self._ok[rank, first[:, inside], blocks[:, inside]].all(0)]
        if len(fits):
            work = self._work(choices[fits])
            least_s = at_least_s(self._whole.family.schedule, work)
            if self._round_trips is not None:
                least_s = np.maximum(least_s, self._round_trips(work))
            found[fits] = least_s + self._after(choices[fits])
        return found

    def simulated_s(self, choices: Array) -> Array:
        """Seconds of a step, by cut; all of them fit."""
        pp, m, vpp, *numbers = self._work(choices)
        seconds: Array = step_time_s(self._whole.family.schedule, pp, m, vpp, *numbers) + self._after(choices)
        return seconds

    def _places(self, choices: Array) -> tuple[Array, Array, Array]:
        """The places of the stages of cuts, (rank, cut) each."""
        cuts = choices.T
        return np.arange(self._pp)[:, None], cuts.cumsum(0) - cuts, cuts

    def _work(self, choices: Array) -> Work:
        places = self._places(choices)
        weights_s = None if self._weights_s is None else self._weights_s[places]
        m = np.full(len(choices), self._m)
        return Work(self._pp, m, 1, self._forward_s[places], self._backward_s[places], self._hop_s, weights_s)

    def _after(self, choices: Array) -> Array:
        return self._after_s[self._places(choices)].max(0)

    def strategy(self, choice: Array) -> Strategy:
        """The layout with this cut and the fastest sets that fit."""
        rank, first, blocks = self._places(choice[None])
        sets = self._chosen[rank, self._ranges.content[first, blocks]][:, 0]
        names = [self._whole.sets[self._sets[place]] for place in sets]
        return self._whole.strategy(self._draft, names, choice.tolist())


class KindStageCuts(OneChunkCuts):
    """The best cut of schedules that alternate forwards and backwards."""

    def __init__(self, whole: Whole, draft: int, limit_bytes: float, limit_s: float):
        self._times = AlternatingTimes(whole, np.array([draft]), limit_bytes, limit_s)
        self._in_turns, self._ways_s = bool(self._times.in_turns[0]), float(self._times.ways_s[0])
        trips = round_trips_at_least_s if self._in_turns and self._ways_s else None
        super().__init__(whole, draft, self._times, trips)
        self._both_s, self._warm = self._times.both_s[0], self._times.warm[0]
        self._after_least_s = float(self._times.after_least_s[0])

    def _within(self, most_s: float, below_s: float) -> tuple[float, Array | None]:
        """(the least W of a cut with no more than most_s beside it, such a cut); None where there is none. below_s:
        cuts of which a rank alone takes so long are left out."""
        chosen: list[Array] = []
        behind_s = self._behind_s(most_s, below_s, chosen)
        if not np.isfinite(behind_s[0][0]):
            return inf, None
        return float(behind_s[0][0]) + self._ways_s, cut_of(chosen)

    def _behind_s(self, most_s: float, below_s: float, chosen: list[Array] | None = None) -> list[Array]:
        """By rank, then first block: work from there on at least, as `AlternatingTimes.within` has it."""
        found = self._times.within(np.zeros(1, dtype=int), np.array([most_s]), np.array([below_s]), chosen)
        return [one[0] for one in found]

    def _beside_s(self, rank: int, behind_s: Array) -> Array:
        """Seconds of a step beside W, by the terms of a rank. behind_s: work behind it, as the stages of the rank."""
        return self._times.beside_s((0, rank), behind_s)

    def _most_beside_s(self, cut: Array) -> float:
        """The largest term beside W of a cut."""
        rank, first, blocks = np.arange(self._pp), cut.cumsum() - cut, cut
        own_s = self._both_s[rank, first, blocks]
        behind_s = own_s[::-1].cumsum()[::-1] - own_s
        return float(self._times.beside_s((0, rank, first, blocks), behind_s).max())

    def best(self) -> Found:
        """The fastest cut that takes less than the limit."""
        best: TimedChoice = (self._limit_s, np.zeros(0, dtype=int))
        listed = self._listed(self._limit_s, FEW_BEGINNINGS)
        if listed is not None:
            best = fastest(self, listed, best)
            at_least_s = best[0]
        else:
            at_least_s, cuts = self._least_sums()
            if at_least_s < self._limit_s * (1 - CLOSE):
                best = fastest(self, cuts[-1:], best)
            if at_least_s < best[0] * (1 - CLOSE):
                listed = self._listed(best[0], MOST_BEGINNINGS)
                best = fastest(self, cuts if listed is None else listed, best)
                at_least_s = at_least_s if listed is None else best[0]
        if not len(best[1]):
            return Found(inf, at_least_s, None)
        return Found(best[0], min(best[0], at_least_s), self.strategy(best[1]))

    def _least_sums(self) -> tuple[float, Array]:
        """(seconds that no cut takes less than by the terms, no more than the limit; good cuts by them, the best one
        last).

        An interval of what may be beside W is looked at by its upper end, where most often no cut is left, and by its
        middle in turn.
        """
        below_s = self._limit_s - self._after_least_s
        work_s, cut = self._within(inf, below_s)
        if cut is None:
            return self._limit_s, np.zeros((0, self._pp), dtype=int)
        low_s = float(self._times.least_beside_s(np.array([work_s]))[0])
        found: list[tuple[float, Array]] = []
        least_s, left = below_s, MOST_HALVINGS
        open_ = list[tuple[float, float, float, bool]]()

        def take(cut: Array, work_s: float) -> float:
            """Seconds just below those that the cut has beside W."""
            top_s = self._most_beside_s(cut)
            found.append((work_s + top_s, cut))
            return top_s * (1 - SAME)

        open_.append((low_s, take(cut, work_s), work_s, True))
        while open_:
            low_s, high_s, work_s, at_end = open_.pop()
            best_s = min(below_s, *(sum_s for sum_s, _ in found))
            high_s = min(high_s, best_s - work_s)
            if high_s <= low_s or high_s - low_s <= CLOSE * best_s or not left:
                least_s = min(least_s, max(low_s, 0.0) + work_s)
                continue
            left -= 1
            probed_s = high_s if at_end else (low_s + high_s) / 2
            more_s, cut = self._within(probed_s, best_s)
            if not at_end and more_s > work_s:
                open_.append((probed_s, high_s, work_s, True))
            if cut is not None:
                open_.append((low_s, min(probed_s, take(cut, more_s)), more_s, not at_end))
        found.sort(key=lambda one: -one[0])
        return min(least_s, found[-1][0]) + self._after_least_s, np.array([cut for _, cut in found])

    def _listed(self, below_s: float, most: int) -> Array | None:
        """The cuts that may take less than below_s, found by listing all beginnings of such cuts; None where these are
        more than `most`."""
        pp, hop_s, ways_s = self._pp, self._hop_s, self._ways_s
        pipeline_s = below_s - self._after_least_s
        work_s, _ = self._within(inf, pipeline_s)
        behind = self._behind_s(pipeline_s - work_s, pipeline_s)
        times = self._times
        may = times.terms.alone_s < pipeline_s
        forward_behind_s, backward_behind_s = (
            [one[0] for one in times.least(seconds, may, np.add)] for seconds in (times.forward_s, times.backward_s)
        )
        may, after_behind_s = may[0], [one[0] for one in times.after_behind_s]
        worst_behind_s = self._worst_behind_s(behind)
        first = np.zeros(1, dtype=int)
        cuts = np.zeros((1, 0), dtype=int)
        nothing, never = np.zeros(1), np.full(1, -inf)
        known = Beginnings(nothing, nothing, nothing, nothing, never, never, never, never, never, never, nothing)
        for rank in range(pp):
            end = self._ranges.end[first]
            old, blocks = np.nonzero(may[rank][first] & self._ok[rank][first] & np.isfinite(behind[rank + 1][end]))
            begin, stop = first[old], end[old, blocks]
            forward_s, backward_s = self._forward_s[rank, begin, blocks], self._backward_s[rank, begin, blocks]
            behind_s, beside_s = behind[rank + 1][stop], self._beside_s(rank, behind[rank + 1][self._ranges.end])
            known = self._with_stage(known.take(old), rank, forward_s, backward_s, behind_s, beside_s[begin, blocks])
            known = known._replace(after_s=np.maximum(known.after_s, self._after_s[rank, begin, blocks]))
            all_s = known.forward_s + known.backward_s + behind_s + ways_s
            up_s, down_s = forward_behind_s[rank + 1][stop], backward_behind_s[rank + 1][stop]
            back_s = (pp - 1 - rank) * hop_s
            ahead_s, astern_s = known.forward_s + up_s + ways_s / 2, known.backward_s + down_s + ways_s / 2
            bounds = (
                known.turned_s,
                all_s + np.maximum(known.beside_s, worst_behind_s[rank + 1][stop]),
                known.open_s + behind_s + 2 * back_s + all_s,
                known.up_s + down_s + back_s + ahead_s,
                known.down_s + up_s + back_s + astern_s,
            )
            after_s = np.maximum(known.after_s, after_behind_s[rank + 1][stop])
            keep = np.flatnonzero(np.maximum.reduce(bounds) + after_s < below_s * (1 - CLOSE))
            if len(keep) > most:
                return None
            first, known = stop[keep], known.take(keep)
            cuts = np.hstack([cuts[old[keep]], blocks[keep, None]])
        return cuts

    def _worst_behind_s(self, behind: list[Array]) -> list[Array]:
        """By rank, then first block: what a step takes beside W by the worst rank from there on, at least."""
        worst = [np.append(np.full(self._layers, inf), [-inf, inf])]
        for rank in range(self._pp - 1, -1, -1):
            beside_s = self._beside_s(rank, behind[rank + 1][self._ranges.end])
            of_stage = np.where(self._ok[rank], np.maximum(beside_s, worst[-1][self._ranges.end]), inf)
            worst.append(np.append(of_stage.min(1), inf))
        return worst[::-1]

    def _with_stage(
        self, known: Beginnings, rank: int, forward_s: Array, backward_s: Array, behind_s: Array, beside_s: Array
    ) -> Beginnings:
        """The beginnings with one stage more. behind_s: work behind it, at least. beside_s: what a step takes beside W
        by this rank, at least."""
        m, hop_s, warm = self._m, self._hop_s, int(self._warm[rank])
        most_forward_s, most_backward_s = (
            np.maximum(most, own)
            for most, own in ((known.most_forward_s, forward_s), (known.most_backward_s, backward_s))
        )
        beside_s = np.maximum(known.beside_s, beside_s)
        if rank and hop_s and self._in_turns:
            trips, rest = divmod(m - 1 - (self._pp + 1 - rank), 2)
            if trips >= 0:  # as of `round_trips_at_least_s`
                both_s = forward_s + backward_s
                trips_s = trips * (known.last_s + both_s + 2 * hop_s) + (1 + rest) * known.last_s
                beside_s = np.maximum(beside_s, trips_s + both_s + behind_s + 2 * (self._pp - rank) * hop_s)
        all_forward_s, all_backward_s = known.forward_s + forward_s, known.backward_s + backward_s
        fill_s = all_forward_s + (warm - 1) * most_forward_s + rank * hop_s
        drain_s = all_backward_s + (warm - 1) * most_backward_s + rank * hop_s
        open_s = known.open_s + forward_s + backward_s + 2 * hop_s
        up_s, down_s = known.up_s + backward_s + hop_s, known.down_s + forward_s + hop_s
        if warm < m:
            open_s = np.maximum(open_s, (m - warm) * (forward_s + backward_s))
        else:  # all forwards come before all backwards: one of the two waits counts
            up_s = np.maximum(up_s, known.backward_s + m * backward_s + rank * hop_s)
            down_s = np.maximum(down_s, known.forward_s + m * forward_s + rank * hop_s)
        up_s, down_s = np.maximum(up_s, open_s + drain_s), np.maximum(down_s, open_s + fill_s)
        turned_s = np.maximum(known.turned_s, np.maximum(up_s + fill_s, down_s + drain_s))
        return Beginnings(
            all_forward_s,
            all_backward_s,
            most_forward_s,
            most_backward_s,
            beside_s,
            open_s,
            up_s,
            down_s,
            turned_s,
            known.after_s,
            forward_s + backward_s,
        )


def cut_of(chosen: list[Array]) -> Array:
    """The cut of the first draft. chosen: blocks of stages by (draft, first block), by rank from the last one on."""
    cut, first = [], 0
    for blocks in reversed(chosen):
        cut.append(int(blocks[0, first]))
        first += cut[-1]
    return np.array(cut)


class WeightsApartCuts(OneChunkCuts):
    """A good cut of schedules that put off gradients of weights, and what no cut takes less than."""

    def __init__(self, whole: Whole, draft: int, limit_bytes: float, limit_s: float):
        self._times = WeightsApartTimes(whole, np.array([draft]), limit_bytes, limit_s)
        super().__init__(whole, draft, self._times, apart_round_trips_at_least_s)
        self._weights_s = self._times.weights_s[0]

    def best(self) -> Found:
        """The fastest cut that is found, of all that may be faster or, where these are too many, from one that keeps
        the slowest rank fastest by moving blocks."""
        at_least_s = float(self._times.at_least_s()[0])
        if not at_least_s < self._limit_s:
            return Found(inf, self._limit_s, None)
        best: TimedChoice = (self._limit_s, np.zeros(0, dtype=int))
        listed = self._listed(self._limit_s)
        if listed is None:
            best = self._moved(best)
            listed = self._listed(best[0])
        if listed is not None:
            best = fastest(self, listed, best)
            at_least_s = best[0]
        if not len(best[1]):
            return Found(inf, min(at_least_s, self._limit_s), None)
        return Found(best[0], min(best[0], at_least_s), self.strategy(best[1]))

    def _moved(self, best: TimedChoice) -> TimedChoice:
        """The fastest cut that is found by moving blocks."""
        chosen: list[Array] = []
        self._times.worst_s(chosen)
        cut = cut_of(chosen)
        best = fastest(self, cut[None], best)
        for _ in range(MOST_ROUNDS):
            before = best
            around = best[1] if len(best[1]) else cut
            best = fastest(self, moves(around, 1, self._ok.shape[2] - 1), best)
            if best is before:
                break
        return best

    def _listed(self, below_s: float) -> Array | None:
        """All cuts that may take less than below_s; None where these are too many."""
        times, worst_s = self._times, self._times.worst_s()
        first, cuts = np.zeros(1, dtype=int), np.zeros((1, 0), dtype=int)
        for rank in range(self._pp):
            end = self._ranges.end[first]
            after_s = np.maximum(self._after_s[rank, first], times.after_behind_s[rank + 1][0, end])
            least_s = np.maximum(times.of_ranks_s[rank][0, first], worst_s[rank + 1][0, end]) + after_s
            old, blocks = np.nonzero(least_s < below_s * (1 - CLOSE))
            if len(old) > MOST_LISTED:
                return None
            first, cuts = end[old, blocks], np.hstack([cuts[old], blocks[:, None]])
        return cuts
