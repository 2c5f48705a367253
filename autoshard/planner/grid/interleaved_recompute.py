"""Recompute sets by virtual stage of one layout with several chunks a rank.

Chunks have equally many blocks, so a rank chooses how many of its chunks recompute what: a mix. The more microbatches a
chunk has in flight, the less it keeps: that needs least memory when the warm-up ends. It is fastest too, since a chunk
that most microbatches visit before the first backward counts less than once a microbatch. Ranks wait for each other, so
the best mix of every rank need not be the best of all: unless all choices are tried, only a bound is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, reduce
from itertools import combinations_with_replacement
from math import comb, inf, prod
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import headless_memory, rank_memory
from autoshard.cost.passes import stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import SAME
from autoshard.planner.grid.bounds import RankBackward, unlike_chunks_at_least_s
from autoshard.planner.grid.interleaved_bounds import MixedLeast, warm_up_visits
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.planner.grid.whole import Whole
from autoshard.rows import pieces
from autoshard.schedules import Moments, Work, at_least_s, head_apart, held_at_first, held_together, step_time_s
from autoshard.schedules.longest_path import longest_path

MOST_MIXES = 20_000
"""Mixes of a rank. With more, sets are left out, and what is proven is a relaxation."""
MOST_IN_ANY_ORDER = 2_500
"""Mixes of a rank in any order. With no more, any chunk may have any set."""
MOST_CHOICES = 3_000
"""With no more choices of mixes that may be the best, all are tried."""
MOST_ROUNDS = 5
"""Rounds in which the mix of one rank after the other is chosen anew."""
MOST_PATHS, MOST_ACTIONS = 16, 100_000
"""Choices of which the longest path is found to bound all, at most, and the actions of them all."""
AT_ONCE = 1 << 17
"""Products of two numbers at once: a core's cache holds their sums, and numpy wakes no other thread for them."""
AGAIN = ("replay_bytes", "segment_bytes", "again_bytes")
COSTS = ("backward_s", "kept_bytes", *AGAIN, "working_bytes")
"""Columns that a recompute set changes; of these, those of what runs again."""


class Mixes(NamedTuple):
    """The mixes of one rank that may fit.

    sets, back_s: the set and the backward seconds, (mix, chunk). fits: by mix, whether it does fit. Mixes that another
    one betters in every chunk are left out.
    """

    sets: Array
    back_s: Array
    fits: Array


class InterleavedSets:
    """Recompute sets by virtual stage of one draft with several chunks a rank, (mix of each rank)."""

    rounds, lists_all = MOST_ROUNDS, True

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float):
        self._whole, self._draft, self._limit_bytes = whole, draft, limit_bytes
        family, problem = whole.family, whole.problem
        self._pp, self._vpp, self._m = family.pp, family.num_virtual_stages, int(whole.count[draft])
        self._layers, self.turns = problem.model.num_hidden_layers // (self._pp * self._vpp), self._pp
        self._hop_s = float(whole.hop_s[draft])
        device, pp = problem.cluster.device, self._pp
        self._hidden_bytes = whole.hidden_bytes(np.array([draft]))
        self._after_s: float = whole.states[whole.state[draft]].after_s(*whole.fewest_blocks)
        block, first, last, state = whole.parts_of(np.full(len(sets), draft), np.array(sets))
        accumulation_s = accumulation_s_per_parameter(problem.training.precision, device)
        forward_s, back_s = stage_passes(self._layers, block, state.block, device, accumulation_s)
        first_back_s = first.backward_s + accumulation_s * state.first.parameters
        self._fewest_first_s = float(first_back_s.min())
        self._last_back_s = float((last.backward_s + accumulation_s * state.last.parameters)[0])
        self._forward_s = np.repeat(forward_s[:1], pp * self._vpp)
        self._forward_s[0] += first.forward_s[0]
        self._forward_s[-1] += last.forward_s[0]
        useful, self._few = _useful(block, first, self._vpp)
        self._every = len(self._few) == len(useful)
        self._sets, self._back_s, self._first_back_s = np.array(sets)[useful], back_s[useful], first_back_s[useful]
        self._block, self._first = block.take(useful), first.take(useful)
        self._last, self._state = last.take(np.array([0])), state.take(np.array([0]))
        self._in_any_order = self._every and len(useful) ** self._vpp <= MOST_IN_ANY_ORDER

    def _visits(self, rank: int) -> Array:
        return warm_up_visits(self._whole.family, rank)

    def _mixes(self, rank: int) -> Mixes:
        """The mixes of a rank. If the fastest set of all fits in each chunk, no other one is looked at."""
        fastest = int(self._back_s.argmin())
        if self._first_back_s[fastest] == self._fewest_first_s:
            mixes = self._mixes_of(rank, np.full((1, self._vpp), fastest))
            if mixes.fits.any():
                return mixes
        if self._in_any_order:
            return self._mixes_of(rank, np.indices((len(self._sets),) * self._vpp).reshape(self._vpp, -1).T)
        order, mixes = np.argsort(-self._visits(rank), kind="stable"), _all_mixes(len(self._few), self._vpp)
        sets = np.empty_like(mixes)
        sets[:, order] = self._few[mixes]
        return self._mixes_of(rank, sets)

    def _mixes_of(self, rank: int, sets: Array) -> Mixes:
        """Some mixes of a rank as far as they may fit. sets: (mix, chunk)."""
        kept = self._layers * self._block.kept_bytes
        sizes = kept[sets]
        none = np.zeros(len(sets))
        may = self._needed_bytes(rank, sets, sizes @ self._visits(rank), none, True) <= self._limit_bytes
        sets, sizes = sets[may], sizes[may]
        fits = self._fits(rank, sets, sizes)
        if self._in_any_order:
            sets, fits = sets[fits], fits[fits]
        costs = self._back_s[sets]
        if rank == 0:
            costs = np.hstack([costs, self._first_back_s[sets[:, :1]]])
        best = np.zeros(len(sets), dtype=bool)
        for such in (fits, ~fits):
            best[np.flatnonzero(such)[undominated(costs[such])]] = True
        sets, fits = sets[best], fits[best]
        back_s = self._back_s[sets]
        if rank == 0:
            back_s[:, 0] += self._first_back_s[sets[:, 0]]
        if rank == self._pp - 1:
            back_s[:, -1] += self._last_back_s
        return Mixes(sets, back_s, fits)

    def _fits(self, rank: int, sets: Array, sizes: Array) -> Array:
        """Whether mixes fit, at the moments with and without a microbatch in the head. sets, sizes: (mix, chunk)."""
        schedule_sizes = self._whole.family.schedule, self._pp, self._m, self._vpp
        moments = held_together(*schedule_sizes)[rank]
        apart = head_apart(moments) if rank == self._pp - 1 else (moments, ())
        at_first = _most_kept(sizes, held_at_first(*schedule_sizes)[rank]) - sizes[:, 0]
        fits = np.ones(len(sets), dtype=bool)
        for held, headless in zip(apart, (False, True), strict=True):
            if held:
                needed = self._needed_bytes(rank, sets, _most_kept(sizes, held), at_first, False, headless)
                fits &= needed <= self._limit_bytes
        return fits

    def _needed_bytes(
        self, rank: int, sets: Array, kept_bytes: Array, at_first_bytes: Array, at_least: bool, headless: bool = False
    ) -> Array:
        """Bytes that a rank needs, by mix. sets: (mix, chunk). kept_bytes: by mix, of all blocks together.
        at_first_bytes: of these, what is there when the embedding runs backward. at_least: whatever the set of the
        first chunk is. headless: while nothing of the head is held."""
        problem, family, blocks = self._whole.problem, self._whole.family, np.array([self._layers])
        holds = family.holds(self._m)[rank]
        if at_least:
            first = PartColumns(*(column.min(keepdims=True) for column in self._first))
        else:
            first = self._first.take(sets[:, 0])
        last, none = self._last, np.zeros(1)
        ends = layouts_ends(family, first, last, self._state)
        of_rank = rank_rows(family, holds, blocks, rank, self._block, ends, self._hidden_bytes)
        own = [one for one, is_own in ((first, rank == 0), (last, of_rank.has_loss and not headless)) if is_own]
        of_block = {name: getattr(self._block, name)[sets] for name in AGAIN}
        of_ends = {name: reduce(np.maximum, (getattr(one, name) for one in own), none)[:, None] for name in AGAIN}
        work, replay = self._block.working_bytes[sets], of_ends["replay_bytes"][:, 0]

        again = {name: np.maximum(of_block[name], of_ends[name]) for name in AGAIN}
        most = (again["replay_bytes"] + work).max(1, initial=0.0)
        more = again["replay_bytes"] - of_block["replay_bytes"]
        in_regions = self._state.in_regions
        at_weights = work + of_block["segment_bytes"] if in_regions else self._block.at_weights_bytes[sets]
        block = PartColumns(*(none,) * len(PartColumns._fields))._replace(
            kept_bytes=kept_bytes / (of_rank.in_flight * self._layers),
            working_bytes=most - replay,
            segment_bytes=again["segment_bytes"].max(1, initial=0.0),
            again_bytes=again["again_bytes"].max(1, initial=0.0),
            at_weights_bytes=(at_weights + more).max(1) - replay,
        )
        of_rank = of_rank.made_of(block)._replace(kept_at_first_bytes=lambda of: at_first_bytes)
        memory = headless_memory if headless else rank_memory
        state = self._state._replace(in_regions=False)  # at_weights_bytes says all
        needed: Array = memory(of_rank, state, problem.training.precision).total
        return needed + problem.cluster.device.reserved_memory_bytes

    @cached_property
    def _of_ranks(self) -> list[Mixes]:
        return [self._mixes(rank) for rank in range(self._pp)]

    @cached_property
    def _mixed(self) -> MixedLeast:
        return MixedLeast(self._whole, np.array([self._draft]), self._limit_bytes)

    @cached_property
    def _least(self) -> list[RankBackward]:
        if not self._every:
            return [RankBackward(*(float(seconds[0]) for seconds in back)) for back in self._mixed.of_ranks]
        ranks = []
        for rank in range(self._pp):
            ends_s, later = np.zeros(self._vpp), self._m - self._visits(rank)
            ends_s[0] += self._fewest_first_s if rank == 0 else 0.0
            ends_s[-1] += self._last_back_s if rank == self._pp - 1 else 0.0
            back_s = self._back_s[self._of_ranks[rank].sets]
            chunks_s, later_s = (float((back_s @ weights).min(initial=inf)) for weights in (np.ones(self._vpp), later))
            chunk_s = float(back_s.min(initial=inf))
            ranks.append(
                RankBackward(
                    chunks_s + ends_s.sum(), chunk_s + ends_s[0], chunk_s + ends_s[-1], later_s + ends_s @ later
                )
            )
        return ranks

    def _bound_s(self, least: Sequence[RankBackward]) -> Array:
        warm_ups = self._whole.family.warm_ups
        seconds: Array = unlike_chunks_at_least_s(warm_ups, self._vpp, self._m, self._forward_s, self._hop_s, least)
        return seconds + self._after_s

    @cached_property
    def at_least_s(self) -> float:
        """Seconds that no sets by virtual stage take less than."""
        by_sums_s = float(self._bound_s(self._least))
        return max(by_sums_s, self._by_paths_s()) if self.starts() else by_sums_s

    def _by_paths_s(self) -> float:
        """Seconds that no sets by virtual stage take less than, by the longest paths of some choices.

        Why: no step is faster than a path through its actions, nor than the mean of some paths. How often the mean goes
        through each virtual stage does not depend on the sets, so the sum over the ranks of what each takes least, by
        itself, is below every choice. The choice that takes least by the mean is the next one of which the longest
        path is found, and so the mean moves to the paths that matter.
        """
        pp, vpp, m, transfer_s = self._pp, self._vpp, self._m, self._hop_s
        choice, forward_s = self._chosen(True), tuple(self._forward_s.tolist())
        visits, other_s, longest_s = np.zeros(pp * vpp), 0.0, 0.0
        for turn in range(min(MOST_PATHS, MOST_ACTIONS // (2 * m * pp * vpp))):
            backward_s = tuple(self._backward_s(choice[None])[:, 0].tolist())
            work = Work(pp, m, vpp, forward_s, backward_s, transfer_s)
            step_s, path = longest_path(self._whole.family.schedule, work)
            visits += (np.array(path.backwards) - visits) / (turn + 1)
            other_s += (path.at_least_s(work._replace(backward_s=[0.0] * len(backward_s))) - other_s) / (turn + 1)
            weights = visits.reshape(vpp, pp).T
            longest_s = max(longest_s, other_s + self._least_of(weights))
            if longest_s >= step_s * (1 - SAME):
                break
            choice = np.array(
                [
                    np.where(mixes.fits, mixes.back_s @ of_rank, np.inf).argmin()
                    for mixes, of_rank in zip(self._of_ranks, weights, strict=True)
                ]
            )
        return longest_s + self._after_s

    def _least_of(self, weights: Array) -> float:
        """Weighted backward seconds of all ranks, at least. weights: (rank, chunk)."""
        ends_s = weights[0, 0] * self._fewest_first_s + weights[-1, -1] * self._last_back_s
        if not self._every:
            return float(self._mixed.weighted_s(weights[:, None]).sum() + ends_s)
        falling = -np.sort(-weights, axis=1)
        return float(ends_s) + sum(
            float((np.sort(self._back_s[mixes.sets], axis=1) @ of_rank).min())
            for mixes, of_rank in zip(self._of_ranks, falling, strict=True)
        )

    def starts(self) -> list[Array]:
        """The mixes that take each rank least; none if some rank has none that fits."""
        if not all(mixes.fits.any() for mixes in self._of_ranks):
            return []
        return [self._chosen(once) for once in (True, False)]

    def neighbours(self, choice: Array, turn: int) -> Array:
        """Choices with another mix of the rank `turn`."""
        fitting = np.flatnonzero(self._of_ranks[turn].fits)
        changed = np.repeat(choice[None], len(fitting), axis=0)
        changed[:, turn] = fitting
        return changed

    def all_below(self, limit_s: float) -> tuple[Array, bool] | None:
        """(choices that may take less than limit_s, whether these are all); None if there are too many."""
        worth = [self._worth(rank, limit_s) for rank in range(self._pp)]
        if prod(map(len, worth)) > MOST_CHOICES:
            return None
        return every_choice(worth), self._in_any_order

    def strategy(self, choice: Array) -> Strategy:
        """The layout with these mixes."""
        names = [""] * (self._pp * self._vpp)
        for rank, (mixes, place) in enumerate(zip(self._of_ranks, choice, strict=True)):
            names[rank :: self._pp] = [self._whole.sets[self._sets[place_of]] for place_of in mixes.sets[place]]
        return self._whole.strategy(self._draft, names, [self._layers] * len(names))

    def _chosen(self, once: bool) -> Array:
        """The mix of each rank that takes least. once: whether a microbatch of the warm-up counts once alone."""
        places = []
        for rank, mixes in enumerate(self._of_ranks):
            weights = self._m - self._visits(rank) + 1 if once else np.ones(self._vpp)
            places.append(int(np.where(mixes.fits, mixes.back_s @ weights, np.inf).argmin()))
        return np.array(places)

    def _worth(self, rank: int, limit_s: float) -> Array:
        """Mixes of a rank that fit and may be part of a choice that takes less than limit_s.

        Of equal mixes one is there, and none that is slower than another in every chunk.
        """
        mixes = self._of_ranks[rank]
        back_s, weights = mixes.back_s, self._m - self._visits(rank)
        least = [*self._least]
        least[rank] = least[rank]._replace(chunks_s=back_s.sum(1), later_s=back_s @ weights)
        bound_s = self._bound_s(least)
        places = np.flatnonzero(mixes.fits & (bound_s < limit_s * (1 - SAME)))
        if len(places) > MOST_CHOICES:
            return places
        first: Array = np.unique(back_s[places], axis=0, return_index=True)[1]
        places = places[first]
        no_worse = (back_s[places][:, None] <= back_s[places][None]).all(2)
        return places[no_worse.sum(0) == 1]

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        """Seconds that steps take at least, by choice; all of them fit."""
        seconds: Array = at_least_s(self._whole.family.schedule, self._work(choices)) + self._after_s
        return seconds

    def simulated_s(self, choices: Array) -> Array:
        """Seconds of a step, by choice; all of them fit."""
        pp, m, vpp, *numbers = self._work(choices)
        seconds: Array = step_time_s(self._whole.family.schedule, pp, m, vpp, *numbers) + self._after_s
        return seconds

    def _backward_s(self, choices: Array) -> Array:
        """(virtual stage, choice)."""
        backward_s = np.empty((self._pp * self._vpp, len(choices)))
        for rank, mixes in enumerate(self._of_ranks):
            backward_s[rank :: self._pp] = mixes.back_s[choices[:, rank]].T
        return backward_s

    def _work(self, choices: Array) -> Work:
        backward_s = self._backward_s(choices)
        forward_s = np.repeat(self._forward_s[:, None], len(choices), axis=1)
        return Work(self._pp, np.full(len(choices), self._m), self._vpp, forward_s, backward_s, self._hop_s)


def _most_kept(sizes: Array, held: Moments) -> Array:
    """Bytes of all chunks together at the moment with most, by mix. sizes: of one microbatch, (mix, chunk). held:
    microbatches of each chunk, by moment."""
    counts, found = np.array(held, float).T, np.empty(len(sizes))
    for some in pieces(len(sizes), AT_ONCE // counts.size):
        found[some] = (sizes[some] @ counts).max(1)
    return found


def _useful(block: PartColumns, first: PartColumns, vpp: int) -> tuple[Array, Array]:
    """(the sets that no other one betters in everything, which of these are mixed, those that keep least first)."""
    columns = np.stack([getattr(part, name) for part in (block, first) for name in COSTS])
    no_worse = (columns[:, :, None] <= columns[:, None, :]).all(0)
    earlier = np.arange(columns.shape[1])[:, None] < np.arange(columns.shape[1])
    useful = np.flatnonzero(~(no_worse & (~no_worse.T | earlier)).any(0))
    most = len(useful)
    while comb(vpp + most - 1, vpp) > MOST_MIXES and most > 1:
        most -= 1
    by_memory = np.argsort(block.kept_bytes[useful], kind="stable")
    return useful, by_memory[np.linspace(0, len(useful) - 1, most).astype(int)]


def undominated(costs: Array) -> Array:
    """The rows, in their order, to which no other row is equal or lower in every column; of equal rows one."""
    left, kept = np.argsort(costs.sum(1), kind="stable"), []
    while len(left):
        kept.append(left[0])
        left = left[(costs[left] < costs[left[0]]).any(1)]
    return np.sort(np.array(kept, dtype=int))


def every_choice(several: Sequence[Array]) -> Array:
    """One of each of several arrays, in every way, (way, array): the first one changes last. There may be more of them
    than an array of numpy has dimensions."""
    left, columns = np.arange(prod(map(len, several))), []
    for one in reversed(several):
        left, place = np.divmod(left, max(1, len(one)))
        columns.append(one[place])
    return np.stack(columns[::-1], axis=1)


@lru_cache(maxsize=32)
def _all_mixes(sets: int, chunks: int) -> Array:
    """Every mix of so many sets, (mix, chunk)."""
    return np.array([*combinations_with_replacement(range(sets), chunks)], dtype=int)
