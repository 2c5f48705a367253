"""Cuts of one layout whose blocks are of several kinds, with two chunks a rank: a good one, and a bound of all.

First come the pairs of stages that a rank may have: those that no faster step can have are left out, by bounds that
know more and more (kind_pairs.py). Of the others, the choices of recompute sets that fit and that none betters in
both stages are priced. What is left are cuts as paths from rank to rank, of which none takes less than a bound, in
parts (kind_split.py). A good cut is found by moving blocks, simulated; few cuts that the bound leaves are all tried,
with all sets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf, prod
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import rank_memory
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import LAST_ROUNDS, Found, TimedChoice, fastest, is_far, lowest_bound
from autoshard.planner.grid.kind_choices import kinds_at_least_s
from autoshard.planner.grid.kind_pairs import ROUNDING, ChunkRoom, Costs
from autoshard.planner.grid.kind_paths import Rows
from autoshard.planner.grid.kind_split import SplitCuts
from autoshard.planner.grid.price import last_blocks, layouts_ends, rank_rows, with_unlike_chunks
from autoshard.planner.grid.stage_cuts import moves
from autoshard.planner.grid.whole import Whole
from autoshard.planner.memo import kept_by_object
from autoshard.rows import pieces
from autoshard.schedules import Work, at_least_s, step_time_s
from autoshard.schedules.held import RankHolds

MOST_ROUNDS = 24
"""Rounds in which a block is moved from one stage to another."""
MOST_CUTS = 5_000
"""With more cuts that may be the best, these are not listed."""
MOST_PAIRS = 10_000_000
"""With more pairs of stages and sets, a layout is not solved: it has few ranks of many blocks."""
MOST_TRIED = 200_000
"""So many choices of sets of the listed cuts are tried."""
USUAL_PARTS, USUAL_EFFORT = 4, 2_000_000
"""Parts of the cuts, and entries of their paths times ranks, that count as one layout more that was solved."""
CLOSE = 1e-9
"""Share of a step by which a bound meets it."""
AT_ONCE, NUMBERS_OF_ROW = 1 << 14, 16
"""Rows, and numbers of one of them, that are priced together: their columns stay in a core's cache, and take no memory
to speak of."""


class Sets(NamedTuple):
    """Pairs of sets of one rank's pairs of stages that may fit: the place of the pair of stages, of the first stage's
    set, of the second one's; a row each."""

    pair: Array
    first: Array
    second: Array

    def take(self, rows: Array | slice) -> Sets:
        """These rows alone, in their order."""
        return Sets(*(column[rows] for column in self))


class TwoChunkCuts:
    """Cuts of one draft with two chunks a rank, (blocks of each virtual stage,)."""

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float, limit_s: float):
        """limit_s: only steps that take less are of interest."""
        self._whole, self._draft, self._sets = whole, draft, np.array(sets)
        self._limit_bytes, self._limit_s = limit_bytes, limit_s
        self._two = two = ChunkRoom(whole, np.array([draft]), self._sets, limit_bytes, limit_s)
        self._pp, self._layers, self._most, self._ranges = two.pp, two.layers, two.most, two.ranges
        self._m, self._hop_s = int(whole.count[draft]), float(whole.hop_s[draft])
        self._state = whole.states[whole.state[draft]]
        self._forward_s = np.append(two.contents.forward_s[:, 0], inf)
        self._backward_s = two.contents.backward_s[:, 0]
        self._pairs, self._more_s = two.pairs, 0.0
        size = self._ranges.counts.shape[1] + 1
        self._both_s = np.full((self._pp, size, size), inf)
        self._chosen = np.zeros((self._pp, size, size), dtype=int)
        self._rows: list[Rows] = []
        candidates, _ = whole.cuts(np.full(len(self._sets), draft), self._sets)
        self._candidates = candidates.of_stages(self._pp, 2).T
        self._best_s, self._best_cut, self._best_sets = inf, np.zeros(0, dtype=int), np.zeros(0, dtype=int)
        self._led_down: set[tuple[int, ...]] = set()
        """Cuts from which steps led down to where no step helps: they would again."""

    def _without(self, costs: Sequence[Costs]) -> tuple[float, list[Array]]:
        """(seconds that no step takes less than, the places of the pairs that a faster one may have, by rank)."""
        more_s = self._two.rounds(costs)
        self._more_s = float(more_s[0])
        seconds = [of_rank.with_more_s(self._more_s)[:, 0] for of_rank in costs]
        may = [of_rank < self._two.limit_s[0] for of_rank in seconds]
        at_least_s = float(self._two.steps_s(costs, more_s)[0])
        left = [np.flatnonzero(there) for there in may]
        for of_all, of_pairs in (
            (self._layers, [of_rank.size for of_rank in costs]),
            (float(self._two.work_s[0]) * (1 - ROUNDING), [of_rank.least_s[:, 0] for of_rank in costs]),
        ):  # the other ranks have no more than the rest of all blocks, and of all work
            most = [amount[there].max(initial=-of_all) for amount, there in zip(of_pairs, may, strict=True)]
            fewest = of_all - sum(most)
            left = [
                rows[amount[rows] >= fewest + rank_most]
                for rows, amount, rank_most in zip(left, of_pairs, most, strict=True)
            ]
        return at_least_s, left

    def _solve_pairs(self) -> float:
        """Leave out pairs that no faster step has; find the best sets of the others. Seconds that no step takes less
        than; the limit, where there is none that takes less."""
        at_least_s, left = self._without(self._two.relaxed(self._pairs))
        if at_least_s >= self._limit_s or sum(map(len, left)) * len(self._sets) ** 2 > MOST_PAIRS:
            return at_least_s
        self._pairs = [pairs.take(places) for pairs, places in zip(self._pairs, left, strict=True)]
        may = [self._roomy(rank) for rank in range(self._pp)]
        sets = [self._sets_in_time(rank, self._at(rank, useful(may[rank]))) for rank in range(self._pp)]
        better_s, left = self._without(
            [self._costs(rank, *self._least_s(rank, sets[rank])[:2]) for rank in range(self._pp)]
        )
        at_least_s = max(at_least_s, better_s)
        if at_least_s >= self._limit_s:
            return at_least_s
        self._pairs = [pairs.take(places) for pairs, places in zip(self._pairs, left, strict=True)]
        sets = self._fitting([of_rank[places] for of_rank, places in zip(may, left, strict=True)])
        found = [self._least_s(rank, sets[rank]) for rank in range(self._pp)]
        for rank, (both_s, _, chosen) in enumerate(found):
            place = rank, *self._pairs[rank].stages
            self._both_s[place], self._chosen[place] = both_s, chosen
        better_s, left = self._without([self._costs(rank, *found[rank][:2]) for rank in range(self._pp)])
        sets = [self._kept(rank, *both) for rank, both in enumerate(zip(sets, left, strict=True))]
        self._rows = [self._rows_of(rank, self._sets_in_time(rank, sets[rank])) for rank in range(self._pp)]
        return max(at_least_s, better_s)

    @kept_by_object
    def _order(self, chunk: int, has_end: bool) -> Array:
        """The sets of stages by rising backward seconds, (content, set). has_end: whether the stage has an end of the
        model."""
        rank = (0, self._pp - 1)[chunk if has_end else 1 - chunk]
        found: Array = self._two.pairs[rank].backward_s[chunk][:, 0].argsort(axis=1, kind="stable")
        return found

    def _orders(self, rank: int) -> tuple[Array, Array]:
        """`_order` of the first and of the second stage of each pair, (pair, set) each."""
        first, second = self._order(0, rank == 0), self._order(1, rank == self._pp - 1)
        x, y = self._pairs[rank].stages
        return first[x], second[y]

    def _at(self, rank: int, places: tuple[Array, Array, Array]) -> Sets:
        """Choices of sets by their places in what `_roomy` gives."""
        pair, of_first, of_second = places
        first, second = self._orders(rank)
        return Sets(pair, first[pair, of_first], second[pair, of_second])

    def _fitting(self, may: list[Array]) -> list[Sets]:
        """By rank, the choices of sets that fit and are in time and that no other one betters in both stages. may: as
        `_roomy` gives it.

        Where the best all fit no others are looked at. Else all are that no fitting one betters.
        """
        ranks, fit = range(self._pp), [np.zeros_like(of_rank) for of_rank in may]
        for looked_at in (useful, self._others):
            places = [looked_at(*both) for both in zip(may, fit, strict=True)]
            sets = [self._at(rank, places[rank]) for rank in ranks]
            in_time = [self._in_time(rank, sets[rank]) for rank in ranks]
            fits = self._fits([sets[rank].take(in_time[rank]) for rank in ranks])
            for of_rank, known, place, rows, there in zip(may, fit, places, in_time, fits, strict=True):
                of_rank[place] = False
                known[tuple(column[rows[there]] for column in place)] = True
        return [self._at(rank, useful(fit[rank])) for rank in ranks]

    @staticmethod
    def _others(may: Array, fit: Array) -> tuple[Array, Array, Array]:
        """The places of the choices that none of those that fit betters. may, fit: of those that were not looked at and
        that fit, as `_roomy` gives it."""
        bettered = np.logical_or.accumulate(np.logical_or.accumulate(fit, axis=1), axis=2)
        pair, first, second = np.nonzero(may & ~bettered)
        return pair, first, second

    def _rows_of(self, rank: int, sets: Sets) -> Rows:
        """Some choices of sets as rows."""
        pairs = self._pairs[rank]
        backward_s = np.stack(
            [
                back_s[of[sets.pair], 0, chosen]
                for back_s, of, chosen in zip(pairs.backward_s, pairs.stages, sets[1:], strict=True)
            ]
        )
        return Rows(sets.pair, np.stack(sets[1:]), backward_s, *self._seconds(rank, sets))

    def _kept(self, rank: int, sets: Sets, left: Array) -> Sets:
        """The sets of some of the pairs, which are then those of the rank."""
        places = np.full(len(self._pairs[rank].size), -1)
        places[left] = np.arange(len(left))
        self._pairs[rank] = self._pairs[rank].take(left)
        sets = sets._replace(pair=places[sets.pair])
        return sets.take(np.flatnonzero(sets.pair >= 0))

    def _roomy(self, rank: int) -> Array:
        """Whether a rank may have room, (pair, set of the first stage, of the second one), the sets in the order of
        `_orders`."""
        pairs, orders, beside_bytes = self._pairs[rank], self._orders(rank), self._two.beside_bytes(rank)[:, 0]
        kept_bytes, free_bytes = self._two.contents.kept_bytes[:, 0], pairs.free_bytes[:, :, None] * (1 + CLOSE)
        may = np.empty((len(pairs.size), len(self._sets), len(self._sets)), dtype=bool)
        for some in _slices(len(may), len(self._sets) ** 2):
            (kept_1, beside_1), (kept_2, beside_2) = (
                [
                    np.take_along_axis(numbers[content[some]], order[some], 1)
                    for numbers in (held * kept_bytes, beside_bytes)
                ]
                for held, content, order in zip(pairs.held, pairs.stages, orders, strict=True)
            )
            taken = kept_1[:, :, None] + kept_2[:, None] + np.maximum(beside_1[:, :, None], beside_2[:, None])
            may[some] = taken <= free_bytes[some]
        return may

    def _seconds(self, rank: int, sets: Sets) -> tuple[Array, Array]:
        """Backward of both stages, and as weighed by the passes behind the warm-up, by row."""
        pairs = self._pairs[rank]
        ahead_s = pairs.backward_s[0][pairs.stages[0][sets.pair], 0, sets.first]
        behind_s = pairs.backward_s[1][pairs.stages[1][sets.pair], 0, sets.second]
        return ahead_s + behind_s, pairs.weights[0, 0] * ahead_s + pairs.weights[1, 0] * behind_s

    def _sets_in_time(self, rank: int, sets: Sets) -> Sets:
        """The sets with which a step may take less than the limit."""
        return sets.take(self._in_time(rank, sets))

    def _in_time(self, rank: int, sets: Sets) -> Array:
        """The places of the sets with which a step may take less than the limit."""
        beside, may = self._two.beside(rank), np.zeros(len(sets.pair), dtype=bool)
        for some in _slices(len(may)):
            part = sets.take(some)
            both_s, later_s = (column[:, None] for column in self._seconds(rank, part))
            costs = self._two.costs(self._pairs[rank].take(part.pair), beside, both_s, later_s)
            may[some] = costs.with_more_s(self._more_s)[:, 0] < self._two.limit_s[0]
        return np.flatnonzero(may)

    def _least_s(self, rank: int, sets: Sets) -> tuple[Array, Array, Array]:
        """By pair, the least backward seconds of both stages, and as weighed behind the warm-up; the sets of the
        first."""
        both_s, later_s = self._seconds(rank, sets)
        count = len(self._pairs[rank].size)
        least_both_s, least_later_s, chosen = np.full(count, inf), np.full(count, inf), np.zeros(count, dtype=int)
        np.minimum.at(least_both_s, sets.pair, both_s)
        np.minimum.at(least_later_s, sets.pair, later_s)
        best = np.flatnonzero(both_s == least_both_s[sets.pair])[::-1]  # of equal ones the first
        chosen[sets.pair[best]] = sets.first[best] * len(self._sets) + sets.second[best]
        return least_both_s, least_later_s, chosen

    def _costs(self, rank: int, both_s: Array, later_s: Array) -> Costs:
        return self._two.costs(self._pairs[rank], self._two.beside(rank), both_s[:, None], later_s[:, None])

    def _fits(self, sets: Sequence[Sets]) -> list[Array]:
        """The places of the rows that fit, by rank."""
        pp, found = self._pp, []
        for ranks in (range(1), range(1, pp - 1), range(pp - 1, pp)):
            rows = [len(sets[rank].pair) for rank in ranks]
            if not len(rows):
                continue
            rank = np.repeat(np.array(ranks, dtype=int), rows)
            contents = [
                np.concatenate([of_rank[sets[one].pair] for one, of_rank in zip(ranks, of_ranks, strict=True)])
                for of_ranks in zip(*(self._pairs[one].stages for one in ranks), strict=True)
            ]
            of_sets = [np.concatenate(of_ranks) for of_ranks in zip(*(sets[one][1:] for one in ranks), strict=True)]
            fits = np.zeros(len(rank), dtype=bool)
            for some in _slices(len(rank)):
                parts = [one[some] for one in contents], [one[some] for one in of_sets]
                fits[some] = self.needed_bytes(rank[some], *parts) <= self._limit_bytes
            found += [np.flatnonzero(part) for part in np.split(fits, np.cumsum(rows)[:-1])]
        return found

    def needed_bytes(self, rank: Array, contents: Sequence[Array], sets: Sequence[Array]) -> Array:
        """Memory of ranks with the same ends that have two contents with two sets, by row."""
        problem, family = self._whole.problem, self._whole.family
        counts = [np.stack([count[one] for one in contents]) for count in self._ranges.counts]
        rows, m = np.full(len(rank), self._draft), np.full(len(rank), self._m)
        block, first, last, state, kinds = self._whole.parts_and_kinds(rows, self._sets[np.stack(sets)], counts)
        ends, hidden_bytes = layouts_ends(family, first, last, state), self._whole.hidden_bytes(rows)
        layers = np.sum(counts, axis=0)
        blocks, *of_kinds = [one.of_stages((0, 1)) for one in (block, *kinds)]
        holds = RankHolds(*np.array(family.holds(self._m))[rank].T)
        of_rank = rank_rows(family, holds, layers[0], int(rank[0]), blocks[0], ends, hidden_bytes)
        of_rank = of_rank._replace(kinds=last_blocks(problem.blocks, of_kinds, np.stack(counts), None))
        of_rank = with_unlike_chunks(of_rank, family, m, rank, layers, blocks)
        of_rank = of_rank._replace(kind_counts=dict(zip(problem.blocks.kinds, counts, strict=True)))
        state = state.of(zip(problem.blocks.kinds, (count.sum(0) for count in counts), strict=True))
        needed: Array = rank_memory(of_rank, state, problem.training.precision).total
        return needed + problem.cluster.device.reserved_memory_bytes

    def best(self, open_s: float = inf) -> Found:
        """The fastest cut that is found to take less than the limit. open_s: another layout is left open that may take
        as little: it is not asked how much more than that cuts of this one take at least."""
        at_least_s = float(kinds_at_least_s(self._whole, np.array([self._draft]), self._limit_bytes)[0])
        if at_least_s < self._limit_s:
            at_least_s = max(at_least_s, self._solve_pairs())
        if at_least_s >= self._limit_s or not np.isfinite(self._both_s).any():
            return Found(inf, at_least_s, None)
        split, after_s = SplitCuts(self._two, self._pairs, self._rows), float(self._two.after_s[0])
        at_least_s = max(at_least_s, split.solve(self._limit_s - after_s, self._descend, open_s - after_s) + after_s)
        effort = split.parts // USUAL_PARTS + split.effort // USUAL_EFFORT
        if at_least_s < self._best_s * (1 - CLOSE) < self._limit_s:
            self._leave()
        proven = at_least_s >= self._below_s * (1 - CLOSE) or self._try_all(split)
        if proven:
            at_least_s = max(at_least_s, self._below_s)
        if self._best_s >= self._limit_s:
            return Found(inf, min(at_least_s, self._limit_s), None, effort)
        names = [self._whole.sets[self._sets[place]] for place in self._best_sets]
        strategy = self._whole.strategy(self._draft, names, self._best_cut.tolist())
        return Found(self._best_s, min(self._best_s, at_least_s), strategy, effort)

    @property
    def _below_s(self) -> float:
        """Only steps that take less are of interest."""
        return min(self._best_s, self._limit_s)

    def _descend(self, starts: Sequence[Array]) -> float:
        """Move blocks from the best of some cuts on, while that helps; the first time also from the best of those that
        are priced anyway: that one is faster mostly, and leads less far down. Seconds of the pipeline that others must
        beat."""
        for tried in (np.array(starts), self._candidates):
            if len(tried):
                self._step_down(np.unique(tried, axis=0))
        self._candidates = self._candidates[:0]
        return self._below_s - float(self._two.after_s[0])

    def _step_down(self, tried: Array) -> None:
        """Move blocks from the best of some cuts on, while that helps."""
        best: TimedChoice = fastest(self, tried, (inf, tried[0]))
        passed, gained_s = list[tuple[int, ...]](), deque[float](maxlen=LAST_ROUNDS)
        for left in reversed(range(MOST_ROUNDS if self._whole.moves_blocks and np.isfinite(best[0]) else 0)):
            before_s = best[0]
            passed.append(tuple(best[1].tolist()))
            if passed[-1] in self._led_down:
                break
            best = fastest(self, moves(best[1], 1, self._most), best, is_step=True)
            gained_s.append(before_s - best[0])
            if best[0] == before_s:
                self._led_down.update(passed)
            if best[0] == before_s or is_far(best[0], gained_s, left, self._below_s):
                break
        if best[0] < self._best_s:
            self._best_s, self._best_cut = best
            self._best_sets = self._chosen_sets(best[1][None])[:, 0]

    def _leave(self) -> None:
        """Move blocks from the best cut on to where bounds are lowest, and from there again to where steps are
        fastest, while that helps: no single move leads from one such cut to another."""
        before_s = inf
        while self._best_s < before_s and self._whole.moves_blocks:
            before_s, cut = self._best_s, self._best_cut
            lowest: TimedChoice = (float(self.bounds_s(cut[None])[0]), cut)
            for _ in range(MOST_ROUNDS):
                bound_s = lowest[0]
                lowest = lowest_bound(self, moves(lowest[1], 1, self._most), lowest)
                if lowest[0] == bound_s:
                    break
            self._step_down(lowest[1][None])

    def _try_all(self, split: SplitCuts) -> bool:
        """Try all cuts that may be better with all sets; False where these are too many."""
        below_s = self._below_s - float(self._two.after_s[0])
        cuts, left = split.cuts_below(below_s * (1 - CLOSE), MOST_CUTS), MOST_TRIED
        if cuts is None or (cuts and len(cuts) * len(self._sets) ** (2 * self._pp) > MOST_TRIED):
            return False
        for cut in cuts:
            of_ranks = self._pairs_of_cut(cut)
            left -= prod(map(len, of_ranks))
            if left < 0:
                return False
            better = self._with_all_sets(cut, of_ranks, self._below_s)
            if better is not None:
                self._best_s, self._best_cut, self._best_sets = better
        return True

    def _pairs_of_cut(self, cut: Array) -> list[Array]:
        """By rank, the pairs of sets that fit and that no other one betters in both stages."""
        contents = self._contents_of(cut[None])[:, 0].tolist()
        return [self._useful_pairs(rank, contents[rank], contents[rank + self._pp]) for rank in range(self._pp)]

    @kept_by_object
    def _useful_pairs(self, rank: int, first: int, second: int) -> Array:
        count, (backward_1, backward_2) = len(self._sets), self._two.pairs[rank].backward_s
        a, b = (sets.ravel() for sets in np.indices((count, count)))
        front_s, back_s = backward_1[first, 0, a], backward_2[second, 0, b]
        of_rank, contents = np.full(len(a), rank), [np.full(len(a), one) for one in (first, second)]
        order = np.lexsort((back_s, front_s))
        order = order[self.needed_bytes(of_rank, contents, (a, b))[order] <= self._limit_bytes]
        least_s = np.minimum.accumulate(np.append(inf, back_s[order]))
        return order[back_s[order] < least_s[:-1]]

    def _with_all_sets(
        self, cut: Array, of_ranks: Sequence[Array], below_s: float
    ) -> tuple[float, Array, Array] | None:
        """(seconds, the cut, the place of each stage's set) of the fastest choice of sets below a limit. of_ranks: the
        pairs of sets that each rank chooses from."""
        count = len(self._sets)
        pairs = np.stack([places.ravel() for places in np.meshgrid(*of_ranks, indexing="ij")])
        sets = np.concatenate([pairs // count, pairs % count])
        if not sets.shape[1]:
            return None
        cuts = np.repeat(cut[None], sets.shape[1], axis=0)
        best_s, place = _fastest_row(self, cuts, sets, below_s)
        return None if place is None else (best_s, cut, sets[:, place])

    def _contents_of(self, choices: Array) -> Array:
        """Contents of the stages of cuts, (virtual stage, cut)."""
        cuts = choices.T
        inside = np.minimum(cuts, self._most)
        content = self._ranges.content[cuts.cumsum(0) - cuts, inside]
        return np.where(cuts <= self._most, content, -1)

    def _chosen_sets(self, choices: Array) -> Array:
        """The places of the sets with which each rank takes least, (virtual stage, cut)."""
        contents, count = self._contents_of(choices), len(self._sets)
        chosen = np.array([self._chosen[r, contents[r], contents[r + self._pp]] for r in range(self._pp)])
        return np.concatenate([chosen // count, chosen % count])

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        """Seconds that steps take at least, by cut, with the sets that take each rank least; infinite where a rank has
        no room."""
        contents = self._contents_of(choices)
        both_s = np.array([self._both_s[r, contents[r], contents[r + self._pp]] for r in range(self._pp)])
        rows = np.flatnonzero((contents >= 0).all(0) & np.isfinite(both_s).all(0))
        found = np.full(len(choices), inf)
        if len(rows):
            found[rows] = self.least_s(choices[rows], self._chosen_sets(choices[rows]))
        return found

    def least_s(self, choices: Array, sets: Array) -> Array:
        """Seconds that steps take at least, by cut. sets: as of step_s."""
        seconds: Array = at_least_s(self._whole.family.schedule, self._work(choices, sets)) + self._after(choices)
        return seconds

    def simulated_s(self, choices: Array) -> Array:
        """Seconds of a step, by cut, with the sets that take each rank least."""
        return self.step_s(choices, self._chosen_sets(choices))

    def step_s(self, choices: Array, sets: Array) -> Array:
        """Seconds of a step, by cut. sets: places of the sets of its stages, (virtual stage, cut)."""
        pp, m, vpp, *numbers = self._work(choices, sets)
        seconds: Array = step_time_s(self._whole.family.schedule, pp, m, vpp, *numbers) + self._after(choices)
        return seconds

    def _work(self, choices: Array, sets: Array) -> Work:
        """The work of pipelines. sets: as of step_s."""
        contents = self._contents_of(choices)
        forward_s, backward_s = self._forward_s[contents], self._backward_s[contents, sets]
        for stage, ahead_s, back_s in zip((0, -1), self._two.ends_forward_s, self._two.ends_backward_s, strict=True):
            forward_s[stage] += ahead_s[0]
            backward_s[stage] += back_s[0, sets[stage]]
        return Work(self._pp, np.full(len(choices), self._m), 2, forward_s, backward_s, self._hop_s)

    def _after(self, choices: Array) -> Array:
        """Seconds that follow the pipeline, by cut."""
        contents = self._contents_of(choices)
        counts = self._ranges.counts[:, contents].reshape(len(self._ranges.counts), 2, self._pp, -1).sum(1)
        return self._state.after_cuts_s(counts)


def useful(may: Array, *_: Array) -> tuple[Array, Array, Array]:
    """The places of those pairs of sets of which no other one is before them in both. may: (pair of stages, first set,
    second set), those to choose from."""
    sets = may.shape[2]
    fastest = np.where(may.any(2), may.argmax(2), sets)
    before = np.minimum.accumulate(fastest, axis=1)
    pair, first = np.nonzero(fastest < np.pad(before[:, :-1], [(0, 0), (1, 0)], constant_values=sets))
    return pair, first, fastest[pair, first]


def _slices(count: int, numbers: int = NUMBERS_OF_ROW) -> list[slice]:
    """All of so many rows, some at once. numbers: of one row."""
    return pieces(count, NUMBERS_OF_ROW * AT_ONCE // numbers)


def _fastest_row(cuts: TwoChunkCuts, choices: Array, sets: Array, below_s: float) -> tuple[float, int | None]:
    """(seconds, row) of the fastest of some cuts with some sets that takes less than below_s."""
    bounds_s = cuts.least_s(choices, sets)
    rows = np.flatnonzero(bounds_s < below_s * (1 - CLOSE))
    if not len(rows):
        return inf, None
    seconds = cuts.step_s(choices[rows], sets[:, rows])
    place = int(seconds.argmin())
    return (float(seconds[place]), int(rows[place])) if seconds[place] < below_s * (1 - CLOSE) else (inf, None)
