"""The best cut of one layout whose blocks are of several kinds, with one chunk a rank: proven.

Every step takes the work W of one microbatch in all stages and something beside it that grows with the work behind a
rank (`Terms`). So the least W of all cuts with no more than M beside it is found by one pass from the last rank to the
first, and the least sum of both by halving an interval of M. What that leaves between bound and simulation is settled
by listing, rank by rank, the beginnings of all cuts that may still be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import SAME, Found, TimedChoice, fastest
from autoshard.planner.grid.kind_stages import longest, ranges, stages_of, upto_s
from autoshard.planner.grid.stage_cuts import moves
from autoshard.planner.grid.table import Whole
from autoshard.schedules import Work, at_least_s, step_time_s
from autoshard.schedules.held import warm_ups

MOST_BEGINNINGS = 100_000
"""With more beginnings of cuts at once, the listing stops, and what is proven is a bound."""
MOST_LISTED = 3_000
"""With more cuts that may be the best where weight gradients are put off, these are not listed."""
MOST_HALVINGS = 60
"""Passes of the halving."""
MOST_ROUNDS = 30
"""Rounds in which a block is moved from one stage to another, where nothing is listed."""
CLOSE = 1e-9
"""Share of a step by which a bound meets it."""


NEVER_S = -1e30
"""A term that never counts: finite, so that its sum with what does not fit is infinite."""


class Terms(NamedTuple):
    """Seconds of a step at least beside the work W of one microbatch, transfers included, by (rank, first block,
    blocks), infinite where a stage does not fit.

    own_s: whatever is behind. around_s: with the work behind the rank. trips, rest_s: round trips to the last rank and
    what is left of the rank's own work, with 1f1b's warm-ups. alone_s: of the whole step.
    """

    own_s: Array
    around_s: Array
    trips: Array
    rest_s: Array
    alone_s: Array


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

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float, limit_s: float):
        """limit_s: only steps that take less are of interest."""
        self._whole, self._draft, self._sets, self._limit_s = whole, draft, list(sets), limit_s
        family, model = whole.family, whole.problem.model
        self._pp, self._layers = family.pp, model.num_hidden_layers
        self._m, self._hop_s = int(whole.count[draft]), float(whole.hop_s[draft])
        most = min(self._layers, self._layers - self._pp + 1 + 2 * whole.bare_ends)
        most = longest(self._m * np.add(*upto_s(whole, draft, sets)), most, limit_s)
        self._ranges = ranges(model, most, in_order=True)
        self._stages = stages_of(whole, draft, sets, limit_bytes, self._ranges)
        self._shorten()
        pad = [(0, 0), (0, 1)]
        content = self._ranges.content
        forward_s, backward_s, self._after_s = (
            np.pad(seconds, pad, constant_values=inf)[:, content]
            for seconds in (self._stages.forward_s, self._stages.backward_s, self._stages.after_s)
        )
        self._ok = np.isfinite(backward_s)
        self._ok[1 if whole.bare_ends else 0 : -1 if whole.bare_ends else None, :, 0] = False
        self._forward_s, self._backward_s = (np.where(self._ok, seconds, inf) for seconds in (forward_s, backward_s))
        self._both_s = self._forward_s + self._backward_s
        self._weights_s = np.pad(self._stages.weights_s, pad)[:, content] if family.rules.weights_apart else None
        self._warm = np.array(warm_ups(family.rules, self._pp, self._m, 1))
        self._after_behind_s = self._least(self._after_s, self._ok, np.maximum)
        self._after_least_s = float(self._after_behind_s[0][0])

    def _shorten(self) -> None:
        """Leave out ranges that are so long that a rank would work on them longer than the limit."""
        least_s = (self._stages.forward_s + self._stages.backward_s).min(0, initial=inf)
        of_ranges = np.where(self._ranges.content >= 0, np.append(least_s, inf)[self._ranges.content], inf)
        worth = np.flatnonzero((self._m * of_ranges < self._limit_s).any(0))
        most = int(worth.max(initial=1))
        content, end = self._ranges.content[:, : most + 1], self._ranges.end[:, : most + 1]
        self._ranges = self._ranges._replace(content=content, end=end)

    def _least(self, seconds: Array, allowed: Array, joined: np.ufunc) -> list[Array]:
        """By rank, then first block: the least of what this rank and those behind it take together, by sum or by the
        largest. seconds, allowed: (rank, first block, blocks)."""
        end, behind = self._ranges.end, np.full(self._layers + 2, inf)
        behind[self._layers] = 0.0 if joined is np.add else -inf
        least = [behind]
        for rank in range(self._pp - 1, -1, -1):
            of_stage = np.where(allowed[rank] & self._ok[rank], joined(seconds[rank], least[-1][end]), inf)
            least.append(np.append(of_stage.min(1), inf))
        return least[::-1]

    def _before(self, seconds: Array) -> list[Array]:
        """By rank, then first block: the least of what the ranks in front take together; last, of all ranks. seconds:
        (rank, first block, blocks), infinite where a stage does not fit."""
        least = [np.append([0.0], np.full(self._layers + 1, inf))]
        for of_stage in seconds:
            after = np.full(self._layers + 2, inf)
            np.minimum.at(after, self._ranges.end, least[-1][:-1, None] + of_stage)
            least.append(np.append(after[:-1], inf))
        return least

    def bounds_s(self, choices: Array) -> Array:
        """Seconds that steps take at least, by cut; infinite where a stage does not fit."""
        found = np.full(len(choices), inf)
        rank, first, blocks = self._places(choices)
        inside = (blocks < self._ok.shape[2]).all(0)
        fits = np.flatnonzero(inside)[self._ok[rank, first[:, inside], blocks[:, inside]].all(0)]
        if len(fits):
            work = self._work(choices[fits])
            found[fits] = at_least_s(self._whole.family.schedule, work) + self._after(choices[fits])
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
        sets = self._stages.chosen[rank, self._ranges.content[first, blocks]][:, 0]
        names = [self._whole.sets[self._sets[place]] for place in sets]
        return self._whole.strategy(self._draft, names, choice.tolist())


class KindStageCuts(OneChunkCuts):
    """The best cut of schedules that alternate forwards and backwards."""

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float, limit_s: float):
        super().__init__(whole, draft, sets, limit_bytes, limit_s)
        self._terms = self._all_terms()

    def _all_terms(self) -> Terms:
        pp, m, hop_s, warm = self._pp, self._m, self._hop_s, self._warm[:, None, None]
        rank = np.arange(pp)[:, None, None]
        both_s = np.where(self._ok, self._both_s, 0.0)
        longer_s = np.where(self._ok, np.maximum(self._forward_s, self._backward_s), 0.0)
        own_s = (warm - 1) * longer_s + (m - warm) * both_s
        if self._whole.family.is_at_once(m):
            own_s = (m - 1) * both_s
        around_s = np.where(warm < m, (m - warm) * both_s + 2 * (pp - 1 - rank) * hop_s, NEVER_S)
        trips = np.zeros((pp, 1, 1), dtype=int)
        rest_s = np.zeros_like(own_s)
        if hop_s and self._in_turns:
            trips, rest = np.divmod(m - 1, pp - rank)
            rest_s = rest * both_s
        before_s = np.array(self._before(self._both_s)[:-1])[:, :-1, None]
        alone_s = before_s + m * self._both_s + 2 * rank * hop_s
        return Terms(own_s, around_s, trips, rest_s, alone_s)

    @property
    def _in_turns(self) -> bool:
        """Whether warm-ups are those of 1f1b."""
        return bool((self._warm == np.minimum(self._pp - np.arange(self._pp), self._m)).all())

    @property
    def _ways_s(self) -> float:
        """Transfers of one microbatch up and down."""
        return 2 * (self._pp - 1) * self._hop_s

    def _beside_s(self, rank: int, behind_s: Array) -> Array:
        """Seconds of a step beside W, by the terms of a rank. behind_s: work behind it, as the stages of the rank."""
        terms = self._terms
        beside_s = np.maximum(terms.own_s[rank], terms.around_s[rank] + behind_s)
        trips = int(terms.trips[rank, 0, 0])
        if trips:
            there_s = 2 * (self._pp - 1 - rank) * self._hop_s
            trip_s = trips * (self._both_s[rank] + behind_s + there_s) + terms.rest_s[rank]
            beside_s = np.maximum(beside_s, trip_s)
        return beside_s

    def _within(self, most_s: float, below_s: float) -> tuple[float, Array | None, list[Array]]:
        """(the least W of a cut with no more than most_s beside it, such a cut, work behind the first block of each
        rank, at least); None where there is none. below_s: cuts of which a rank alone takes so long are left out."""
        end, behind = self._ranges.end, np.full(self._layers + 2, inf)
        behind[self._layers] = 0.0
        least, chosen = [behind], []
        for rank in range(self._pp - 1, -1, -1):
            behind_s = least[-1][end]
            may = (self._beside_s(rank, behind_s) <= most_s) & (self._terms.alone_s[rank] < below_s)
            of_stage = np.where(may & self._ok[rank], self._both_s[rank] + behind_s, inf)
            chosen.append(of_stage.argmin(1))
            least.append(np.append(of_stage.min(1), inf))
        if not np.isfinite(least[-1][0]):
            return inf, None, least[::-1]
        cut, first = [], 0
        for blocks in reversed(chosen):
            cut.append(int(blocks[first]))
            first += cut[-1]
        return float(least[-1][0]) + self._ways_s, np.array(cut), least[::-1]

    def _most_beside_s(self, cut: Array) -> float:
        """The largest term beside W of a cut."""
        first, behind_s, most_s = self._layers, 0.0, 0.0
        for rank in range(self._pp - 1, -1, -1):
            first -= int(cut[rank])
            place = np.full(self._ok.shape[1:], inf)
            place[first, cut[rank]] = behind_s
            most_s = max(most_s, float(self._beside_s(rank, place)[first, cut[rank]]))
            behind_s += float(self._both_s[rank, first, cut[rank]])
        return most_s

    def best(self) -> Found:
        """The fastest cut that takes less than the limit."""
        best: TimedChoice = (self._limit_s, np.zeros(0, dtype=int))
        at_least_s, cuts = self._least_sums()
        if at_least_s < self._limit_s * (1 - CLOSE):
            best = fastest(self, cuts[-1:], best)
            if at_least_s < best[0] * (1 - CLOSE):
                listed = self._listed(best[0])
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
        work_s, cut, _ = self._within(inf, below_s)
        if cut is None:
            return self._limit_s, np.zeros((0, self._pp), dtype=int)
        low_s = 0.0  # where ranks wait for those behind, some rank has its share of all work beside W
        if self._in_turns and self._m > self._pp:
            low_s = (1 - CLOSE) * (self._m - 1) / self._pp * (work_s - self._ways_s)
        found: list[tuple[float, Array]] = []
        least_s, left = below_s, MOST_HALVINGS
        open_ = list[tuple[float, float, float, bool]]()

        def take(cut: Array, work_s: float) -> float:
            """What is just less than the cut has beside W."""
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
            more_s, cut, _ = self._within(probed_s, best_s)
            if not at_end and more_s > work_s:
                open_.append((probed_s, high_s, work_s, True))
            if cut is not None:
                open_.append((low_s, min(probed_s, take(cut, more_s)), more_s, not at_end))
        found.sort(key=lambda one: -one[0])
        return min(least_s, found[-1][0]) + self._after_least_s, np.array([cut for _, cut in found])

    def _listed(self, below_s: float) -> Array | None:
        """The cuts that may take less than below_s, found by listing all beginnings of such cuts; None where these are
        too many."""
        pp, hop_s, ways_s = self._pp, self._hop_s, self._ways_s
        pipeline_s = below_s - self._after_least_s
        work_s, _, behind = self._within(inf, pipeline_s)
        *_, behind = self._within(pipeline_s - work_s, pipeline_s)
        may = np.stack([self._terms.alone_s[rank] < pipeline_s for rank in range(pp)])
        forward_behind_s, backward_behind_s = (
            self._least(seconds, may, np.add) for seconds in (self._forward_s, self._backward_s)
        )
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
            known = self._with_stage(known.take(old), rank, forward_s, backward_s, beside_s[begin, blocks])
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
            after_s = np.maximum(known.after_s, self._after_behind_s[rank + 1][stop])
            keep = np.flatnonzero(np.maximum.reduce(bounds) + after_s < below_s * (1 - CLOSE))
            if len(keep) > MOST_BEGINNINGS:
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
        self, known: Beginnings, rank: int, forward_s: Array, backward_s: Array, beside_s: Array
    ) -> Beginnings:
        """The beginnings with one stage more. beside_s: what a step takes beside W by this rank, at least."""
        m, hop_s, warm = self._m, self._hop_s, int(self._warm[rank])
        most_forward_s, most_backward_s = (
            np.maximum(most, own)
            for most, own in ((known.most_forward_s, forward_s), (known.most_backward_s, backward_s))
        )
        beside_s = np.maximum(known.beside_s, beside_s)
        if rank and hop_s and self._in_turns:
            trips, rest = divmod(m - 1 - (self._pp - 1 - rank), 2)
            if trips >= 1:
                before_s = known.last_s
                trip_s = trips * (before_s + forward_s + backward_s + 2 * hop_s) + rest * before_s
                beside_s = np.maximum(beside_s, trip_s + (self._pp - 1 - rank) * known.most_forward_s)
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


class WeightsApartCuts(OneChunkCuts):
    """A good cut of schedules that put off gradients of weights, and what no cut takes less than."""

    def best(self) -> Found:
        """The fastest cut that is found, from one that keeps the slowest rank fastest, by moving blocks."""
        at_least_s, cut = self._bound()
        if cut is None:
            return Found(inf, self._limit_s, None)
        best: TimedChoice = (self._limit_s, np.zeros(0, dtype=int))
        listed = self._listed(self._limit_s)
        if listed is None:
            best = self._moved(cut, best)
            listed = self._listed(best[0])
        if listed is not None:
            best = fastest(self, listed, best)
            at_least_s = best[0]
        if not len(best[1]):
            return Found(inf, min(at_least_s, self._limit_s), None)
        return Found(best[0], min(best[0], at_least_s), self.strategy(best[1]))

    def _moved(self, cut: Array, best: TimedChoice) -> TimedChoice:
        """The fastest cut that is found from one by moving blocks."""
        best = fastest(self, cut[None], best)
        for _ in range(MOST_ROUNDS):
            before = best
            around = best[1] if len(best[1]) else cut
            best = fastest(self, moves(around, self._ok.shape[2] - 1), best)
            if best is before:
                break
        return best

    def _listed(self, below_s: float) -> Array | None:
        """All cuts that may take less than below_s; None where these are too many."""
        first, cuts = np.zeros(1, dtype=int), np.zeros((1, 0), dtype=int)
        for rank in range(self._pp):
            end = self._ranges.end[first]
            after_s = np.maximum(self._after_s[rank, first], self._after_behind_s[rank + 1][end])
            least_s = np.maximum(self._of_ranks[rank][first], self._worst[rank + 1][end]) + after_s
            old, blocks = np.nonzero(least_s < below_s * (1 - CLOSE))
            if len(old) > MOST_LISTED:
                return None
            first, cuts = end[old, blocks], np.hstack([cuts[old], blocks[:, None]])
        return cuts

    def _bound(self) -> tuple[float, Array | None]:
        """(seconds that no cut takes less than, the cut of which the slowest rank takes no more).

        Why: a rank waits for its first forward, and before its first backward for microbatch 0 to go through all stages
        and back. Then it has work for all microbatches. What others take at least follows from where its stage begins
        and ends.
        """
        pp, m, hop_s, end = self._pp, self._m, self._hop_s, self._ranges.end
        assert self._weights_s is not None
        behind_s = self._least(self._backward_s - self._weights_s, self._ok, np.add)
        before_s = self._before(self._forward_s)
        all_forward_s = before_s[pp][self._layers] + (pp - 1) * hop_s
        worst, chosen, of_ranks = [np.append(np.full(self._layers, inf), [-inf, inf])], [], []
        for rank in range(pp - 1, -1, -1):
            forward_s, backward_s = m * self._forward_s[rank], m * self._backward_s[rank]
            filled_s = before_s[rank][:-1, None] + rank * hop_s + forward_s
            turned_s = all_forward_s + behind_s[rank + 1][end] + (pp - 1 - rank) * hop_s
            turned_s = turned_s + (m - self._warm[rank]) * np.where(self._ok[rank], self._forward_s[rank], 0.0)
            of_ranks.append(np.where(self._ok[rank], np.maximum(filled_s, turned_s) + backward_s, inf))
            of_stage = np.maximum(of_ranks[-1], worst[-1][end])
            chosen.append(of_stage.argmin(1))
            worst.append(np.append(of_stage.min(1), inf))
        self._of_ranks, self._worst = of_ranks[::-1], worst[::-1]
        at_least_s = float(worst[-1][0]) + self._after_least_s
        if not np.isfinite(at_least_s):
            return inf, None
        cut, first = [], 0
        for blocks in reversed(chosen):
            cut.append(int(blocks[first]))
            first += cut[-1]
        return at_least_s, np.array(cut)
