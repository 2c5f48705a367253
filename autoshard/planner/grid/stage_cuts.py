"""Cuts of one layout into stages, each with the best recompute set of every stage.

With one chunk a rank a stage's memory depends on its own blocks and set alone, and no layout is faster for a slower
stage. So a stage of n blocks takes the fastest set that fits, and what is left to choose is n for every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heapreplace
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import add_ends, stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import (
    any_cut_at_least_s,
    slowest_stage_at_least_s,
    this_stage_at_least_s,
)
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.whole import Whole
from autoshard.rows import Number
from autoshard.schedules import Work, at_least_s, step_time_s
from autoshard.schedules.held import RankHolds, warm_ups

MOST_CUTS = 3000
"""With no more cuts that may be the best, all are tried."""
MOST_ROUNDS = 100
"""Rounds in which a block is moved from one stage to another, where cuts are too many."""


class Options(NamedTuple):
    """The options of each stage, (stage, blocks): seconds forward and backward, infinite where it may not have so many
    blocks or no set fits; and the place of the fastest set that fits."""

    forward_s: Array
    backward_s: Array
    chosen: Array


class StageCuts:
    """Cuts of one draft with one chunk a rank, (blocks of each stage); stages choose from some recompute sets."""

    rounds, turns, lists_all = MOST_ROUNDS, 1, True

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float):
        self._whole, self._draft, self._sets = whole, draft, list(sets)
        self._pp, self._layers = whole.family.pp, whole.problem.model.num_hidden_layers
        self._m, self._hop_s = int(whole.count[draft]), float(whole.hop_s[draft])
        self._state, self._fewest = whole.states[whole.state[draft]], whole.fewest_of_stages
        self._most = self._layers - int(self._fewest.sum()) + int(self._fewest.max())  # of one stage
        self._waits, self._at_once = whole.family.waits_for_all(self._m), bool(whole.family.is_at_once(self._m))
        self._options = self._stage_options(limit_bytes)
        self._work_s = self._options.forward_s + self._options.backward_s

    def _stage_options(self, limit_bytes: float) -> Options:
        problem, pp, family = self._whole.problem, self._pp, self._whole.family
        rows = np.full(len(self._sets), self._draft)
        block, first, last, state = self._whole.parts_of(rows, np.array(self._sets))
        hidden_bytes = self._whole.hidden_bytes(rows)
        blocks = np.arange(self._most + 1)[:, None]
        device, holds = problem.cluster.device, family.holds(self._m)
        accumulation_s = accumulation_s_per_parameter(problem.training.precision, device)
        passes = stage_passes(blocks, block, state.block, device, accumulation_s)
        options, ends = [], layouts_ends(family, first, last, state)
        for ranks in filter(len, ([0], range(1, pp - 1), [pp - 1])):  # those between the ends differ in what they hold
            held: Number = np.array([holds[rank] for rank in ranks]).T[:, :, None, None]
            of_ranks = rank_rows(family, RankHolds(*held), blocks, ranks[0], block, ends, hidden_bytes)
            needed = rank_memory(of_ranks, state, problem.training.precision).total
            stage = [passes.forward_s], [passes.backward_s]
            add_ends(*stage, of_ranks.ends, accumulation_s)
            (forward_s,), (backward_s,) = stage
            may = (needed + device.reserved_memory_bytes <= limit_bytes) & (blocks >= self._fewest[ranks[0]])
            backward_s = np.where(may, backward_s, np.inf)
            chosen = backward_s.argmin(2)
            forward_s = np.broadcast_to(forward_s[:, 0], chosen.shape)
            options.append((forward_s, np.take_along_axis(backward_s, chosen[..., None], 2)[..., 0], chosen))
        return Options(*map(np.concatenate, zip(*options, strict=True)))

    @cached_property
    def at_least_s(self) -> float:
        """Seconds that no cut takes less than; infinite where none fits."""
        balanced = self._balanced(early=False)
        if balanced is None:
            return inf
        slowest_s = float(max(self._work_s[stage, n] for stage, n in enumerate(balanced)))
        sizes, after_s = self._bound
        return float(slowest_stage_at_least_s(*sizes, slowest_s, self._hop_s, self._waits, self._at_once)) + after_s

    def starts(self) -> list[Array]:
        """Balanced cuts, with more blocks in late stages and in early ones; none if no cut fits."""
        cuts = [self._balanced(early=False), self._balanced(early=True)]
        starts = [np.array(cut) for cut in cuts if cut is not None]
        return starts[:1] if len(starts) == 2 and (starts[0] == starts[1]).all() else starts

    def neighbours(self, choice: Array, turn: int) -> Array:
        """Cuts with one block moved from one stage to another."""
        return moves(choice, self._fewest, self._most)

    def all_below(self, limit_s: float) -> tuple[Array, bool] | None:
        """(all cuts that may take less than limit_s, True); None if there are too many."""
        most = self._most_blocks(limit_s)
        if (most < self._fewest).any() or most.sum() < self._layers:
            return np.zeros((0, self._pp), dtype=int), True
        limits = self._fewest, most, self._layers
        return (_all_cuts(*limits).T, True) if _count_cuts(*limits) <= MOST_CUTS else None

    def strategy(self, choice: Array) -> Strategy:
        """The layout with this cut and the fastest sets that fit."""
        names = [self._whole.sets[self._sets[self._options.chosen[stage, n]]] for stage, n in enumerate(choice)]
        return self._whole.strategy(self._draft, names, choice.tolist())

    def _balanced(self, early: bool) -> list[int] | None:
        """The cut whose slowest stage is fastest: each further block goes to the stage that is fastest with it."""
        counts: list[int] = self._fewest.tolist()
        sign = 1 if early else -1

        def with_one_more(stage: int) -> tuple[float, int]:
            blocks = counts[stage] + 1
            after_s = self._work_s[stage, blocks] if blocks <= self._most else np.inf
            return float(f"{after_s:.9g}"), sign * stage

        if not np.isfinite(self._work_s[range(self._pp), counts]).all():
            return None
        queue = [with_one_more(stage) for stage in range(self._pp)]
        heapify(queue)
        for _ in range(self._layers - sum(counts)):
            after_s, key = queue[0]
            if after_s == np.inf:
                return None
            stage = sign * key
            counts[stage] += 1
            heapreplace(queue, with_one_more(stage))
        return counts

    @cached_property
    def _bound(self) -> tuple[tuple[int, int, float], float]:
        """(pp, microbatches and the least work of one; what follows the pipeline, at least), as bounds take them."""
        after_s = self._state.after_s(*self._whole.fewest_blocks)
        return (self._pp, self._m, any_cut_at_least_s(self._work_s, self._layers)), after_s

    def _most_blocks(self, limit_s: float) -> Array:
        """The most blocks of each stage in a cut that may take less than limit_s."""
        (pp, m, work_s), after_s = self._bound
        bounds_s = [
            this_stage_at_least_s(pp, warm_up, m, work_s, stage_s, self._hop_s, self._at_once)
            for warm_up, stage_s in zip(warm_ups(self._whole.family.rules, pp, m, 1), self._work_s, strict=True)
        ]
        return self._fewest - 1 + np.array([int((seconds + after_s < limit_s).sum()) for seconds in bounds_s])

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        """Seconds that steps take at least, by cut; infinite where a cut does not fit."""
        work = self._work(choices)
        fits = np.isfinite(work.backward_s).all(0)
        bounds_s = np.full(len(choices), np.inf)
        if fits.any():
            work = self._work(choices[fits])._replace(num_microbatches=self._m)  # faster than as many rows of it
            pipeline_s = at_least_s(self._whole.family.schedule, work)
            bounds_s[fits] = pipeline_s + self._after_s(choices[fits])
        return bounds_s

    def simulated_s(self, choices: Array) -> Array:
        """Seconds of a step, by cut; all of them fit."""
        pp, m, vpp, *numbers = self._work(choices)
        seconds: Array = step_time_s(self._whole.family.schedule, pp, m, vpp, *numbers)
        return seconds + self._after_s(choices)

    def _work(self, choices: Array) -> Work:
        stage = np.arange(self._pp)[:, None]
        forward_s, backward_s = (
            seconds[stage, choices.T] for seconds in (self._options.forward_s, self._options.backward_s)
        )
        return Work(self._pp, np.full(len(choices), self._m), 1, forward_s, backward_s, self._hop_s)

    def _after_s(self, choices: Array) -> Array:
        between = choices[:, 1:-1].max(1) if self._pp > 2 else np.zeros(len(choices), dtype=int)
        blocks = np.stack([choices[:, 0], between, choices[:, -1]], 1).tolist()
        return np.array([self._state.after_s(*of_cut) for of_cut in blocks])


def moves(cut: Array, fewest: Array | int, most: int) -> Array:
    """Cuts with one block moved from one stage, which has more than the fewest of it, to another, which then has at
    most `most`, (cut, stage)."""
    gives, takes = cut > fewest, cut < most
    source, target = np.nonzero(gives[:, None] & takes & ~np.eye(len(cut), dtype=bool))
    moved, rows = np.repeat(cut[None], len(source), axis=0), np.arange(len(source))
    moved[rows, source] -= 1
    moved[rows, target] += 1
    return moved


def _count_cuts(fewest: Array, most: Array, layers: int) -> float:
    """How many cuts give every stage at least and at most so many blocks."""
    ways = np.zeros(layers + 1)
    ways[0] = 1
    for least, count in zip(fewest, most, strict=True):
        steps = np.concatenate([np.zeros(least), np.ones(count - least + 1)])
        ways = np.convolve(ways, steps)[: layers + 1]
    return float(ways[layers])


def _all_cuts(fewest: Array, most: Array, layers: int) -> Array:
    """Every cut that gives each stage at least and at most so many blocks, (stage, cut)."""
    cuts, used = np.zeros((0, 1), dtype=int), np.zeros(1, dtype=int)
    for stage, count in enumerate(most):
        behind, room = (int(of_stages[stage + 1 :].sum()) for of_stages in (fewest, most))
        parts = []
        for n in range(fewest[stage], count + 1):
            left = layers - used - n
            keep = (left >= behind) & (left <= room)
            parts.append((np.vstack([cuts[:, keep], np.full((1, int(keep.sum())), n)]), used[keep] + n))
        cuts, used = np.hstack([part for part, _ in parts]), np.concatenate([part for _, part in parts])
    return cuts
