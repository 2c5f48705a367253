"""The best cut into stages of one layout, with the best recompute set of each stage: exact where it says so.

With one chunk a rank a stage's memory depends on its own blocks and set alone, and no layout is faster for a slower
stage. So a stage of n blocks takes the fastest set that fits, and what is left to choose is n for every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import add_ends, stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import (
    any_cut_at_least_s,
    fewest_blocks,
    slowest_stage_at_least_s,
    this_stage_at_least_s,
)
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.table import Whole
from autoshard.schedules import Work, at_least_s, step_time_s

MOST_CUTS = 3000
"""All cuts that may be best are tried where there are no more."""
MOST_ROUNDS = 30
"""Else blocks are moved one at a time, so many rounds at most."""


class Options(NamedTuple):
    """By stage and number of blocks less one: seconds forward and backward (infinite where no set fits), which set."""

    forward_s: Array
    backward_s: Array
    chosen: Array


class Found(NamedTuple):
    """The fastest cut that was found. at_least_s: no cut is faster than that."""

    step_time_s: float
    at_least_s: float
    strategy: Strategy


class Frame:
    """A draft of one family with one chunk a rank, and the sets that its stages may choose from."""

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float):
        self._whole, self._draft, self._sets = whole, draft, list(sets)
        self._pp, self._layers = whole.family.pp, whole.problem.model.num_hidden_layers
        self._m, self._hop_s = int(whole.count[draft]), float(whole.hop_s[draft])
        self._state = whole.states[whole.state[draft]]
        self._waits = bool(whole.family.waits_for_all(self._m))
        self._options = self._stage_options(limit_bytes)
        self._work_s = self._options.forward_s + self._options.backward_s

    def _stage_options(self, limit_bytes: float) -> Options:
        problem, pp, family = self._whole.problem, self._pp, self._whole.family
        rows = np.full(len(self._sets), self._draft)
        block, first, last, state = self._whole.parts_of(rows, np.array(self._sets))
        hidden_bytes = self._whole.hidden_bytes(rows)
        blocks = np.arange(1, self._layers - pp + 2)[:, None]
        device, holds = problem.cluster.device, family.holds(self._m)
        accumulation_s = accumulation_s_per_parameter(problem.training.precision, device)
        passes = stage_passes(blocks, block, state.block, device, accumulation_s)
        options, ends = [], layouts_ends(family, first, last, state)
        for rank in range(pp):
            of_rank = rank_rows(family, holds[rank], blocks, rank, block, ends, hidden_bytes)
            needed = rank_memory(of_rank, state, problem.training.precision).total
            stage = [passes.forward_s], [passes.backward_s]
            add_ends(*stage, of_rank.ends, accumulation_s)
            (ahead,), (back,) = stage
            back = np.where(needed + device.reserved_memory_bytes <= limit_bytes, back, np.inf)
            chosen = back.argmin(1)
            options.append((ahead[:, 0], np.take_along_axis(back, chosen[:, None], 1)[:, 0], chosen))
        return Options(*(np.array(column) for column in zip(*options, strict=True)))

    def best(self, limit_s: float) -> Found | None:
        """None where no cut fits or none takes less than limit_s."""
        balanced = self._balanced(early=False)
        if balanced is None:
            return None
        at_least_s = self._at_least_s(balanced)
        if at_least_s >= limit_s:
            return None
        most = self._most_blocks(limit_s)
        if most.min() < 1 or most.sum() < self._layers:
            return None
        if _count_cuts(most, self._layers) <= MOST_CUTS:
            return self._best_of(_all_cuts(most, self._layers), limit_s)
        early = self._balanced(early=True)
        cuts = np.array([balanced, balanced if early is None else early]).T
        cut, bound_s = self._improved(cuts, most, self._times_s)
        seconds = float(self._simulated_s(cut[:, None])[0])
        if seconds > bound_s * (1 + 1e-9):
            cut, seconds = self._improved(cut[:, None], most, self._may_take_s)
        return self._found(cut, seconds, min(seconds, at_least_s)) if seconds < limit_s else None

    def _best_of(self, cuts: Array, limit_s: float) -> Found | None:
        """The fastest of all cuts. Those whose bound leaves a chance are simulated, the lowest bounds first."""
        times = self._times_s(cuts)
        best, seconds = 0, limit_s
        order = np.argsort(times, kind="stable")
        begin, at_once = 0, 1  # the lowest bound is the best one nearly always
        while len(places := order[begin : begin + at_once]):
            begin, at_once = begin + at_once, 2 * at_once
            places = places[times[places] < seconds * (1 - 1e-12)]
            if not len(places):
                break
            simulated = self._simulated_s(cuts[:, places])
            if simulated.min() < seconds:
                best, seconds = int(places[simulated.argmin()]), float(simulated.min())
        return self._found(cuts[:, best], seconds, seconds) if seconds < limit_s else None

    def _found(self, cut: Array, seconds: float, at_least_s: float) -> Found:
        names = [self._whole.sets[self._sets[self._options.chosen[stage, n - 1]]] for stage, n in enumerate(cut)]
        return Found(seconds, at_least_s, self._whole.strategy(self._draft, names, cut.tolist()))

    def _balanced(self, early: bool) -> list[int] | None:
        """The cut whose slowest stage is fastest: each further block goes to the stage that is fastest with it."""
        pp, work_s = self._pp, self._work_s
        counts = [1] * pp
        if not np.isfinite(work_s[:, 0]).all():
            return None
        if work_s.shape[1] == 1:
            return counts
        sign = 1 if early else -1
        queue = [(float(f"{work_s[stage, 1]:.9g}"), sign * stage) for stage in range(pp)]
        heapify(queue)
        for _ in range(self._layers - pp):
            after_s, key = queue[0]
            if after_s == np.inf:
                return None
            stage = sign * key
            counts[stage] += 1
            after_s = work_s[stage, counts[stage]] if counts[stage] < work_s.shape[1] else np.inf
            heapreplace(queue, (float(f"{after_s:.9g}"), key))
        return counts

    @cached_property
    def _bound(self) -> tuple[tuple[int, int, float], float]:
        """(pp, microbatches and the least work of one; what follows the pipeline, at least), as bounds take them."""
        after_s = self._state.after_s(*fewest_blocks(self._pp, 1, self._layers))
        return (self._pp, self._m, any_cut_at_least_s(self._work_s, self._layers)), after_s

    def _at_least_s(self, balanced: Sequence[int]) -> float:
        """Seconds of a step, whatever the cut."""
        slowest_s = float(max(self._work_s[stage, n - 1] for stage, n in enumerate(balanced)))
        sizes, after_s = self._bound
        return float(slowest_stage_at_least_s(*sizes, slowest_s, self._hop_s, self._waits)) + after_s

    def _most_blocks(self, limit_s: float) -> Array:
        """Of each stage in any cut that takes less than limit_s."""
        (pp, m, work_s), after_s = self._bound
        bounds_s = [
            this_stage_at_least_s(pp, rank, m, work_s, stage_s, self._hop_s, self._waits)
            for rank, stage_s in enumerate(self._work_s)
        ]
        return np.array([int((seconds + after_s < limit_s).sum()) for seconds in bounds_s])

    def _times_s(self, cuts: Array) -> Array:
        """Lower bounds; infinite where a cut does not fit. cuts: (stage, cut)."""
        work = self._work(cuts)
        fits = np.isfinite(work.backward_s).all(0)
        times = np.full(cuts.shape[1], np.inf)
        if fits.any():
            pipeline_s = at_least_s(self._whole.family.schedule, self._work(cuts[:, fits]))
            times[fits] = pipeline_s + [self._after_s(cut) for cut in cuts[:, fits].T]
        return times

    def _simulated_s(self, cuts: Array) -> Array:
        """cuts: (stage, cut), all of which fit."""
        pp, m, vpp, *numbers = self._work(cuts)
        seconds: Array = step_time_s(self._whole.family.schedule, pp, m, vpp, *numbers)
        return seconds + [self._after_s(cut) for cut in cuts.T]

    def _work(self, cuts: Array) -> Work:
        stage = np.arange(self._pp)[:, None]
        ahead, back = self._options.forward_s[stage, cuts - 1], self._options.backward_s[stage, cuts - 1]
        return Work(self._pp, np.full(cuts.shape[1], self._m), 1, ahead, back, self._hop_s)

    def _after_s(self, cut: Array) -> float:
        between = int(cut[1:-1].max()) if self._pp > 2 else 0
        seconds: float = self._state.after_s(int(cut[0]), between, int(cut[-1]))
        return seconds

    def _may_take_s(self, cuts: Array) -> Array:
        """Simulated, but for cuts whose bound is above what another one takes. cuts: (stage, cut)."""
        times = self._times_s(cuts)
        if not np.isfinite(times).any():
            return times
        fastest = int(times.argmin())
        worth = times <= float(self._simulated_s(cuts[:, [fastest]])[0])
        times[worth] = self._simulated_s(cuts[:, worth])
        return times

    def _improved(self, cuts: Array, most: Array, times_s: Callable[[Array], Array]) -> tuple[Array, float]:
        """The best of some cuts, then single blocks moved while that helps. times_s: of cuts."""
        times = times_s(cuts)
        cut, seconds = cuts[:, times.argmin()], float(times.min())
        for _ in range(MOST_ROUNDS):
            moved = np.array([*_moves(cut, most)]).T
            if not moved.size:
                break
            times = times_s(moved)
            if times.min() >= seconds * (1 - 1e-12):
                break
            cut, seconds = moved[:, times.argmin()], float(times.min())
        return cut, seconds


def _moves(cut: Array, most: Array) -> Iterator[Array]:
    """One block from one stage to another."""
    for source in range(len(cut)):
        for target in range(len(cut)):
            if source != target and cut[source] > 1 and cut[target] < most[target]:
                moved = cut.copy()
                moved[source] -= 1
                moved[target] += 1
                yield moved


def _count_cuts(most: Array, layers: int) -> float:
    """How many cuts give every stage at least 1 and at most so many blocks."""
    ways = np.zeros(layers + 1)
    ways[0] = 1
    for count in most:
        steps = np.concatenate([[0.0], np.ones(count)])
        ways = np.convolve(ways, steps)[: layers + 1]
    return float(ways[layers])


def _all_cuts(most: Array, layers: int) -> Array:
    """(stage, cut)."""
    cuts, used = np.zeros((0, 1), dtype=int), np.zeros(1, dtype=int)
    for stage, count in enumerate(most):
        behind = len(most) - stage - 1
        room = int(most[stage + 1 :].sum())
        parts = []
        for n in range(1, count + 1):
            left = layers - used - n
            keep = (left >= behind) & (left <= room)
            parts.append((np.vstack([cuts[:, keep], np.full((1, int(keep.sum())), n)]), used[keep] + n))
        cuts, used = np.hstack([part for part, _ in parts]), np.concatenate([part for _, part in parts])
    return cuts
