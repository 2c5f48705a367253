"""Cuts of one layout whose blocks are of several kinds, with two chunks a rank: a bound of all, and a good one.

Rank r runs blocks [i, i + n1), then [j, j + n2): i begins at 0, and j where i ends, in the middle of the model. So one
state is (rank, i, j), and what a step takes at least by one rank depends on its state and its two sizes alone, the
recompute sets being the least of all pairs that fit its memory. The least of the largest such bound, over all cuts, is
found from the last rank to the first. A good cut is found by moving blocks, simulated; few cuts that a bound leaves are
all tried, with all sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from math import inf, prod
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import Found, TimedChoice, fastest
from autoshard.planner.grid.interleaved_bounds import warm_up_visits
from autoshard.planner.grid.kind_choices import kinds_at_least_s
from autoshard.planner.grid.kind_stages import longest, ranges, upto_s
from autoshard.planner.grid.price import last_blocks, layouts_ends, rank_rows, with_unlike_chunks
from autoshard.planner.grid.stage_cuts import moves
from autoshard.planner.grid.table import Whole
from autoshard.schedules import Work, at_least_s, step_time_s

MOST_ROUNDS = 12
"""Rounds in which a block is moved from one stage to another."""
MOST_CUTS = 5_000
"""With more cuts that may be the best, these are not listed."""
MOST_PAIRS = 120_000
"""With more pairs of stages and sets on a rank, a layout is not solved: it has few ranks of many blocks."""
LARGEST_TABLE = 4_000_000
"""With larger tables a layout is neither bounded nor solved."""
MOST_TRIED = 200_000
"""So many choices of sets of the listed cuts are tried."""
CLOSE = 1e-9
"""Share of a step by which a bound meets it."""


class Pairs(NamedTuple):
    """Pairs of one rank's two stages by their contents, (content, content).

    both_s: backward seconds of both; later_s: as weighed by what runs behind the warm-up; each the least of the sets
    that fit, infinite where none do. chosen: the place of the pair of sets that takes least.
    """

    both_s: Array
    later_s: Array
    chosen: Array


class TwoChunkCuts:
    """Cuts of one draft with two chunks a rank, (blocks of each virtual stage,)."""

    def __init__(
        self,
        whole: Whole,
        draft: int,
        sets: Sequence[int],
        limit_bytes: float,
        limit_s: float,
        knows_memory: bool = True,
    ):
        """limit_s: only steps that take less are of interest. knows_memory: whether what does not fit is left out;
        bounds without are found ten times as fast."""
        self._knows_memory = knows_memory
        self._whole, self._draft, self._sets = whole, draft, np.array(sets)
        self._limit_bytes, self._limit_s = limit_bytes, limit_s
        problem, family = whole.problem, whole.family
        self._pp, self._layers = family.pp, problem.model.num_hidden_layers
        self._bare = int(whole.bare_ends)
        self._m, self._hop_s = int(whole.count[draft]), float(whole.hop_s[draft])
        self._accumulation_s = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        self._state = whole.states[whole.state[draft]]
        self._after_least_s = self._state.after_any_cut_s(whole.kind_counts)
        self._visits = [warm_up_visits(family, rank) for rank in range(self._pp)]
        self._prepare_blocks()
        self._most = self._longest()
        self._ranges = ranges(problem.model, self._most, in_order=False)
        self._prepare_contents()

    def _prepare_blocks(self) -> None:
        """Forward and backward of the blocks in front of each, at least, ends of the model and launches apart."""
        whole, rows = self._whole, np.full(len(self._sets), self._draft)
        state = whole.states[whole.state[self._draft]].state
        _, first, last, _ = whole.parts_of(rows, self._sets)
        launch_s = whole.problem.cluster.device.pass_launch_s
        self._launch_s = launch_s
        ends = (first, state.first), (last, state.last)
        self._ends_forward_s = [float(part.forward_s[0]) for part, _ in ends]
        self._ends_backward_s = [
            float(part.backward_s.min()) + self._accumulation_s * unit.parameters for part, unit in ends
        ]
        self._upto_forward_s, self._upto_backward_s = (
            np.append(seconds, inf) for seconds in upto_s(whole, self._draft, self._sets)
        )

    def _longest(self) -> int:
        """The most blocks of a stage of which its rank does not work longer than the limit."""
        both_s = (self._upto_forward_s + self._upto_backward_s)[:-1]
        most = min(self._layers, self._layers - 2 * self._pp + 1 + 2 * self._bare)
        return longest(self._m * both_s, most, self._limit_s)

    def _prepare_contents(self) -> None:
        """Forward seconds by content, backward seconds by (content, set), the ends of the model left out."""
        counts, sets = self._ranges.counts, len(self._sets)
        rows = np.full(counts.shape[1] * sets, self._draft)
        of_kinds = [np.repeat(count, sets) for count in counts]
        block, _, _, state = self._whole.parts_of(rows, np.tile(self._sets, counts.shape[1]), of_kinds)
        blocks, device = np.repeat(counts.sum(0), sets), self._whole.problem.cluster.device
        forward_s, backward_s = stage_passes(blocks, block, state.block, device, self._accumulation_s)
        self._forward_s = np.append(forward_s.reshape(-1, sets)[:, 0], inf)
        self._backward_s = backward_s.reshape(-1, sets)
        _, first, last, state = self._whole.parts_of(np.full(sets, self._draft), self._sets)
        self._first_backward_s = first.backward_s + self._accumulation_s * state.first.parameters
        self._last_backward_s = last.backward_s + self._accumulation_s * state.last.parameters

    def _windows(self, rank: int) -> tuple[Array, Array]:
        """Places where a rank's two stages may begin."""
        pp, most, layers, bare = self._pp, self._most, self._layers, self._bare
        first = np.arange(max(0, rank - bare), min(rank * most, layers - 2 * pp + rank + bare) + 1)
        second = np.arange(max(layers - (pp - rank) * most, pp + rank - bare), layers - (pp - rank) + bare + 1)
        return first, second

    def _contents(self, begin: Array) -> Array:
        """The different contents of stages with blocks that begin at some places."""
        found = np.unique(self._ranges.content[begin])
        return found[found >= 0]

    @cached_property
    def _pairs(self) -> list[Pairs]:
        return [self._pairs_of(rank) for rank in range(self._pp)]

    def _pairs_of(self, rank: int) -> Pairs:
        one, two = (self._contents(begin) for begin in self._windows(rank))
        sets, size = len(self._sets), self._ranges.counts.shape[1] + 1
        both, later = np.full((size, size), inf), np.full((size, size), inf)
        chosen = np.zeros((size, size), dtype=int)
        if not len(one) or not len(two):
            return Pairs(both, later, chosen)
        front_s, back_s = self._pair_backward_s(rank, one, two)
        weights = self._m - self._visits[rank]
        if not self._knows_memory:
            ahead_s, behind_s = front_s[:, :, :, 0].min(2), back_s[:, :, 0].min(2)
            place = np.ix_(one, two)
            both[place], later[place] = ahead_s + behind_s, weights[0] * ahead_s + weights[1] * behind_s
            return Pairs(both, later, chosen)
        fits = self._fits(rank, one, two)
        shape = (len(one), len(two), sets * sets)
        both_s = np.where(fits, front_s + back_s, inf).reshape(shape)
        later_s = np.where(fits, weights[0] * front_s + weights[1] * back_s, inf).reshape(shape)
        place = np.ix_(one, two)
        both[place], later[place], chosen[place] = both_s.min(2), later_s.min(2), both_s.argmin(2)
        return Pairs(both, later, chosen)

    def _pair_backward_s(self, rank: int, one: Array, two: Array) -> tuple[Array, Array]:
        """Backward of a rank's first and of its second stage, (content, content, set, set)."""
        first, second = self._backward_s[one], self._backward_s[two]
        if rank == 0:
            first = first + self._first_backward_s
        if rank == self._pp - 1:
            second = second + self._last_backward_s
        shape = (len(one), len(two), len(self._sets), len(self._sets))
        return np.broadcast_to(first[:, None, :, None], shape), np.broadcast_to(second[None, :, None, :], shape)

    def _fits(self, rank: int, one: Array, two: Array) -> Array:
        """Whether a rank has room for two contents with two sets, (content, content, set, set)."""
        problem, family, sets = self._whole.problem, self._whole.family, len(self._sets)
        shape = (len(one), len(two), sets, sets)
        x, y, a, b = (places.ravel() for places in np.indices(shape))
        counts = [np.stack([count[one[x]], count[two[y]]]) for count in self._ranges.counts]
        rows, m = np.full(len(x), self._draft), np.full(len(x), self._m)
        block, first, last, state, kinds = self._whole.parts_and_kinds(rows, self._sets[np.stack([a, b])], counts)
        ends, hidden_bytes = layouts_ends(family, first, last, state), self._whole.hidden_bytes(rows)
        layers = np.sum(counts, axis=0)
        blocks, *of_kinds = [one.of_stages((0, 1)) for one in (block, *kinds)]
        of_rank = rank_rows(family, family.holds(self._m)[rank], layers[0], rank, blocks[0], ends, hidden_bytes)
        of_rank = of_rank._replace(kinds=last_blocks(of_kinds, np.stack(counts), None))
        of_rank = with_unlike_chunks(of_rank, family, m, rank, layers, blocks)
        state = state.of(zip(problem.model.kinds, (count.sum(0) for count in counts), strict=True))
        needed = rank_memory(of_rank, state, problem.training.precision).total
        fits: Array = (needed + problem.cluster.device.reserved_memory_bytes <= self._limit_bytes).reshape(shape)
        return fits

    def _costs_s(self, rank: int) -> Array:
        """Seconds that a step takes at least by one rank, (i, j, n1, n2), i and j in its windows.

        Why: the four ways of schedules.closed_form.alternating_at_least_s through this rank: its first backward waits
        for microbatch 0 to come back or for its own warm-up, and the same, mirrored in time, at the end. What other
        ranks take at least follows from where the stages begin and end.
        """
        pp, m, hop_s, layers = self._pp, self._m, self._hop_s, self._layers
        i, j = self._windows(rank)
        size = np.arange(self._most + 1)
        x, y = self._ranges.content[i][:, None, :, None], self._ranges.content[j][None, :, None, :]
        end = np.minimum(j[:, None] + size, layers)[None, :, None, :]
        forward_1, forward_2 = self._forward_s[x], self._forward_s[y]
        if rank == 0:
            forward_1 = forward_1 + self._ends_forward_s[0]
        if rank == pp - 1:
            forward_2 = forward_2 + self._ends_forward_s[1]
        pairs, visits = self._pairs[rank], self._visits[rank]
        back_s, later_back_s = m * pairs.both_s[x, y], pairs.later_s[x, y]

        def in_front(upto: Array, end_s: float) -> Array:
            return (upto[i] + rank * self._launch_s + (end_s if rank else 0.0))[:, None, None, None] + rank * hop_s

        def behind(upto: Array, end_s: float) -> Array:
            return upto[layers] - upto[end] + (pp - 1 - rank) * self._launch_s + (end_s if rank < pp - 1 else 0.0)

        fill_s = in_front(self._upto_forward_s, self._ends_forward_s[0])
        drain_s = in_front(self._upto_backward_s, self._ends_backward_s[0])
        behind_forward_s = behind(self._upto_forward_s, self._ends_forward_s[1])
        behind_backward_s = behind(self._upto_backward_s, self._ends_backward_s[1])
        all_forward_s, all_backward_s = (
            float(upto[layers]) + 2 * pp * self._launch_s + sum(ends)
            for upto, ends in (
                (self._upto_forward_s, self._ends_forward_s),
                (self._upto_backward_s, self._ends_backward_s),
            )
        )
        way_s = (3 * pp - 2 - rank) * hop_s
        up_s, down_s = all_forward_s + behind_backward_s + way_s, all_backward_s + behind_forward_s + way_s
        ahead_s = m * (forward_1 + forward_2)
        ways = [fill_s + drain_s + ahead_s + back_s]
        if self._whole.family.warm_ups[rank] < 2 * m:
            later_s = (m - visits[0]) * forward_1 + (m - visits[1]) * forward_2
            ways += [
                up_s + down_s + later_s + later_back_s,
                up_s + later_s + back_s + drain_s,
                fill_s + ahead_s + later_back_s + down_s,
            ]
        else:
            ways += [up_s + back_s + drain_s, fill_s + ahead_s + down_s]
        may = (size > 0) if self._whole.moves_blocks else size == self._layers // (2 * pp)
        bare = (size == 0) & bool(self._bare)
        may_1, may_2 = (may | (bare & (rank == end_rank)) for end_rank in (0, pp - 1))
        right = (end == layers) if rank == pp - 1 else True
        fits = (x >= 0) & (y >= 0) & right & may_1[:, None] & may_2
        costs: Array = np.where(fits, np.maximum.reduce(np.broadcast_arrays(*ways)), inf)
        return costs

    @cached_property
    def _costs(self) -> list[Array]:
        return [self._costs_s(rank) for rank in range(self._pp)]

    @cached_property
    def _values(self) -> list[Array]:
        """By rank, (middle, i, j), i and j in its windows: the least of the largest cost of it and the ranks behind."""
        layers, most = self._layers, self._most
        value = np.full((len(self._middles), layers + most + 1, layers + most + 1), inf)
        value[np.arange(len(self._middles)), self._middles, layers] = -inf
        values = []
        for rank in range(self._pp - 1, -1, -1):
            i, j = (slice(begin[0], begin[-1] + 1) if len(begin) else slice(0, 0) for begin in self._windows(rank))
            costs, least = self._costs[rank], np.full_like(value[:, i, j], inf)
            for n1, n2 in np.argwhere(np.isfinite(costs).any((0, 1))).tolist():
                after = value[:, i.start + n1 : i.stop + n1, j.start + n2 : j.stop + n2]
                np.minimum(least, np.maximum(costs[:, :, n1, n2], after), out=least)
            values.append(least)
            value.fill(inf)
            value[:, i, j] = least
        return values[::-1]

    def _table(self, rank: int, middle: int, i: Array, j: Array) -> Array:
        """The largest cost of a rank and those behind it, at least, (state, n1, n2). middle: its place. i, j: where the
        rank's stages begin, by state."""
        size, (first, second) = np.arange(self._most + 1), self._windows(rank)
        costs, ends_1, ends_2 = self._costs[rank][i - first[0], j - second[0]], i[:, None] + size, j[:, None] + size
        if rank == self._pp - 1:
            ends = (ends_1 == self._middles[middle])[:, :, None] & (ends_2 == self._layers)[:, None]
            return np.maximum(costs, np.where(ends, -inf, inf))
        (first, second), value = self._windows(rank + 1), self._values[rank + 1][middle]
        places_1, places_2 = ends_1 - first[0], ends_2 - second[0]
        inside_1, inside_2 = (
            (places >= 0) & (places < count)
            for places, count in ((places_1, value.shape[0]), (places_2, value.shape[1]))
        )
        after = value[np.where(inside_1, places_1, 0)[:, :, None], np.where(inside_2, places_2, 0)[:, None]]
        return np.maximum(costs, np.where(inside_1[:, :, None] & inside_2[:, None], after, inf))

    @property
    def table_size(self) -> int:
        """Entries of the largest of the tables that a bound is found from."""
        windows = [[len(begin) for begin in self._windows(rank)] for rank in range(self._pp)]
        return len(self._middles) * max(map(prod, windows)) * (self._most + 1) ** 2

    def at_least_s(self) -> float:
        """Seconds that no cut takes less than; 0 where the tables would be too large."""
        if self.table_size > LARGEST_TABLE:
            return 0.0
        return self._bound()[0] + float(self._after_least_s)

    @property
    def _middles(self) -> Array:
        """Places where the second chunks may begin."""
        pp, most, layers, bare = self._pp, self._most, self._layers, self._bare
        return np.arange(max(pp - bare, layers - pp * most), min(layers - pp + bare, pp * most) + 1)

    def _bound(self) -> tuple[float, list[Array]]:
        """(seconds that no cut takes less than, cuts of which no rank takes more, for some middles)."""
        if not len(self._middles):
            return inf, []
        j = self._windows(0)[1]
        inside = np.flatnonzero(np.isin(self._middles, j))
        least = np.full(len(self._middles), inf)
        least[inside] = self._values[0][inside, 0, self._middles[inside] - j[0]]
        order = [int(place) for place in least.argsort(kind="stable")[:4] if np.isfinite(least[place])]
        return float(least.min()), [self._cut(place) for place in order]

    def _cut(self, middle: int) -> Array:
        """The cut that the tables lead to."""
        i, j, ones, twos = 0, int(self._middles[middle]), [], []
        for rank in range(self._pp):
            table = self._table(rank, middle, np.array([i]), np.array([j]))[0]
            n1, n2 = map(int, np.unravel_index(table.argmin(), table.shape))
            ones.append(n1)
            twos.append(n2)
            i, j = i + n1, j + n2
        return np.array(ones + twos)

    def best(self) -> Found:
        """The fastest cut that is found to take less than the limit."""
        at_least_s = float(kinds_at_least_s(self._whole, np.array([self._draft]), self._limit_bytes)[0])
        if at_least_s >= self._limit_s:
            return Found(inf, at_least_s, None)
        if self.table_size > LARGEST_TABLE or self._pairs_to_price() > MOST_PAIRS:
            return Found(inf, at_least_s, None)
        bound_s, cuts = self._bound()
        at_least_s = max(at_least_s, bound_s + self._after_least_s)
        if at_least_s >= self._limit_s:
            return Found(inf, at_least_s, None)
        candidates, _ = self._whole.cuts(np.full(len(self._sets), self._draft), self._sets)
        starts = np.unique([*cuts, *candidates.of_stages(self._pp, 2).T], axis=0)
        best: TimedChoice = fastest(self, starts, (inf, starts[0]))
        for _ in range(MOST_ROUNDS if self._whole.moves_blocks and np.isfinite(best[0]) else 0):
            before_s = best[0]
            best = fastest(self, np.array([*moves(best[1], self._most)]), best)
            if best[0] == before_s:
                break
        sets = self._chosen_sets(best[1][None])[:, 0]
        listed = self._listed(min(best[0], self._limit_s))
        left, proven = MOST_TRIED, listed is not None
        for cut in listed or ():
            of_ranks = self._pairs_of_cut(cut)
            left -= prod(map(len, of_ranks))
            proven = left >= 0
            if not proven:
                break
            better = self._with_all_sets(cut, of_ranks, min(best[0], self._limit_s))
            if better is not None:
                best, sets = better[:2], better[2]
        if proven:
            at_least_s = max(at_least_s, min(best[0], self._limit_s))
        if best[0] >= self._limit_s:
            return Found(inf, min(at_least_s, self._limit_s), None)
        names = [self._whole.sets[self._sets[place]] for place in sets]
        strategy = self._whole.strategy(self._draft, names, best[1].tolist())
        return Found(best[0], min(best[0], at_least_s), strategy)

    def _pairs_to_price(self) -> int:
        """The most pairs of contents and of sets that a rank may have."""
        contents = ([len(self._contents(begin)) for begin in self._windows(rank)] for rank in range(self._pp))
        return len(self._sets) ** 2 * max(map(prod, contents))

    def _listed(self, below_s: float) -> list[Array] | None:
        """All cuts that may take less than below_s; None where these are too many."""
        found: list[Array] = []
        for place, middle in enumerate(self._middles.tolist()):
            if middle not in self._windows(0)[1]:
                continue
            i, j, cuts = np.array([0]), np.array([middle]), np.zeros((2, 0, 1), dtype=int)
            for rank in range(self._pp):
                table = self._table(rank, place, i, j)
                old, n1, n2 = np.nonzero(table + self._after_least_s < below_s * (1 - CLOSE))
                if len(old) > MOST_CUTS:
                    return None
                sizes = np.stack([n1, n2])[:, None]
                i, j, cuts = i[old] + n1, j[old] + n2, np.concatenate([cuts[:, :, old], sizes], axis=1)
            found += [*cuts.transpose(2, 0, 1).reshape(-1, 2 * self._pp)]
            if len(found) > MOST_CUTS:
                return None
        sets = len(self._sets) ** 2
        return found if len(found) * sets**self._pp <= MOST_TRIED or len(found) == 0 else None

    def _pairs_of_cut(self, cut: Array) -> list[Array]:
        """By rank, the pairs of sets that fit and that no other one betters in both stages."""
        contents = self._contents_of(cut[None])[:, 0].tolist()
        return [self._useful_pairs(rank, contents[rank], contents[rank + self._pp]) for rank in range(self._pp)]

    @cache  # noqa: B019  as short-lived as the layout
    def _useful_pairs(self, rank: int, first: int, second: int) -> Array:
        one, two = np.array([first]), np.array([second])
        front_s, back_s = (seconds.ravel() for seconds in self._pair_backward_s(rank, one, two))
        order = np.lexsort((back_s, front_s))
        order = order[self._fits(rank, one, two).ravel()[order]]
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
        chosen = np.array([self._pairs[r].chosen[contents[r], contents[r + self._pp]] for r in range(self._pp)])
        return np.concatenate([chosen // count, chosen % count])

    def bounds_s(self, choices: Array) -> Array:
        """Seconds that steps take at least, by cut, with the sets that take each rank least; infinite where a rank has
        no room."""
        contents = self._contents_of(choices)
        both_s = np.array([self._pairs[r].both_s[contents[r], contents[r + self._pp]] for r in range(self._pp)])
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
        forward_s[0] += self._ends_forward_s[0]
        forward_s[-1] += self._ends_forward_s[1]
        backward_s[0] += self._first_backward_s[sets[0]]
        backward_s[-1] += self._last_backward_s[sets[-1]]
        return Work(self._pp, np.full(len(choices), self._m), 2, forward_s, backward_s, self._hop_s)

    def _after(self, choices: Array) -> Array:
        """Seconds that follow the pipeline, by cut."""
        contents = self._contents_of(choices)
        counts = self._ranges.counts[:, contents].reshape(len(self._ranges.counts), 2, self._pp, -1).sum(1)
        of_ranks = [
            self._state.after_rows_s([*counts[:, rank]], rank == 0, rank == self._pp - 1) for rank in range(self._pp)
        ]
        return np.max(of_ranks, axis=0)


def _fastest_row(cuts: TwoChunkCuts, choices: Array, sets: Array, below_s: float) -> tuple[float, int | None]:
    """(seconds, row) of the fastest of some cuts with some sets that takes less than below_s."""
    bounds_s = cuts.least_s(choices, sets)
    rows = np.flatnonzero(bounds_s < below_s * (1 - CLOSE))
    if not len(rows):
        return inf, None
    seconds = cuts.step_s(choices[rows], sets[:, rows])
    place = int(seconds.argmin())
    return (float(seconds[place]), int(rows[place])) if seconds[place] < below_s * (1 - CLOSE) else (inf, None)
