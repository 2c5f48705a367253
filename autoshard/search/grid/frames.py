"""Which layouts may beat all that are known with another cut or other recompute sets by stage, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.search.grid.memory import rank_parts_bytes
from autoshard.search.grid.parts import PartColumns
from autoshard.search.grid.pipeline import Array
from autoshard.search.grid.price import rank_columns
from autoshard.search.grid.table import Whole
from autoshard.search.grid.uneven import Found, Frame

ROUNDING = 1e-9
"""Share of a step by which a bound may be off for rounding."""


class Promise(NamedTuple):
    """at_least_s: no cut takes less. sets: places of those that stages may choose from."""

    at_least_s: float
    whole: Whole
    draft: int
    sets: tuple[int, ...]


class Refined(NamedTuple):
    """found: layouts, each faster than what was known before. at_least_s: no layout that was looked at is faster, where
    that is less than the step time of the best. unfinished: layouts that were not looked at in time."""

    found: list[Found]
    at_least_s: float
    unfinished: int


def refine(
    wholes: Iterable[Whole], by_stage: bool, limit_bytes: float, known_s: float, in_time: Callable[[], bool]
) -> Refined:
    """The layouts that beat known_s, by cuts and, with by_stage, by recompute sets that differ from stage to stage."""
    ranked = [
        one for whole in wholes if whole.family.cuts_are_free for one in promises(whole, by_stage, limit_bytes, known_s)
    ]
    ranked.sort(key=lambda one: one.at_least_s)
    found: list[Found] = []
    at_least_s = best_s = known_s
    for place, (bound_s, whole, draft, sets) in enumerate(ranked):
        if bound_s >= best_s * (1 - ROUNDING):
            break
        if not in_time():
            return Refined(found, min(at_least_s, bound_s), len(ranked) - place)
        one = Frame(whole, draft, sets, limit_bytes).best(best_s * (1 - ROUNDING))
        if one is not None:
            at_least_s = min(at_least_s, one.at_least_s)
            found.append(one)
            best_s = one.step_time_s
    return Refined(found, min(at_least_s, best_s), 0)


def promises(whole: Whole, by_stage: bool, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts with free cuts of which some layout may fit and take less than known_s."""
    count, sets = len(whole.drafts.drafts), len(whole.sets)
    draft, recompute = np.repeat(np.arange(count), sets), np.tile(np.arange(sets), count)
    shape = (count, sets) if by_stage else (count * sets, 1)
    layouts = _Bounds(whole, draft.reshape(shape), recompute.reshape(shape))
    at_least_s = layouts.at_least_s()
    rows = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if len(rows):
        rows = rows[_Bounds(whole, layouts.draft[rows], layouts.recompute[rows]).has_room(limit_bytes, known_s)]
    for row in rows.tolist():
        yield Promise(float(at_least_s[row]), whole, int(layouts.draft[row, 0]), tuple(layouts.recompute[row].tolist()))


class _Bounds:
    """draft, recompute: (layout, set that a stage may choose)."""

    def __init__(self, whole: Whole, draft: Array, recompute: Array):
        self.draft, self.recompute = draft, recompute
        self._whole, problem = whole, whole.problem
        flat = draft.ravel()
        block, first, last, self._state = whole.parts_of(flat, recompute.ravel())
        self._parts = (block, first, last)
        self._launch_s, self._layers = 2 * problem.cluster.device.pass_launch_s, problem.model.num_hidden_layers
        per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)

        def seconds(part: PartColumns, parameters: Array) -> Array:
            return (part.forward_s + part.backward_s + per_parameter * parameters).reshape(draft.shape)

        self._block_s = seconds(block, self._state.block)
        self._ends_s = (seconds(first, self._state.first), seconds(last, self._state.last))
        pp, one = whole.family.pp, draft[:, 0]
        self._m, self._hops_s = whole.count[one], 2 * (pp - 1) * whole.hop_s[one]
        most = -(-self._layers // pp) if pp > 2 else 0
        self._after_s = np.array([whole.states[state].after_s(1, most, 1) for state in whole.state[one].tolist()])
        ends_s = sum(end.min(1) for end in self._ends_s)
        self._work_s = pp * self._launch_s + self._layers * self._block_s.min(1) + ends_s

    @property
    def _leaves_gaps(self) -> Array:
        """Where the way to the first backward and back counts beside the slowest stage."""
        return (self._m > self._whole.family.pp + 1) & (not self._whole.family.at_once)

    def at_least_s(self) -> Array:
        pp, m, work_s = self._whole.family.pp, self._m, self._work_s
        bound_s = np.maximum(m * work_s / pp, work_s + self._hops_s)
        round_trip_s = 2 * work_s + (m - pp - 1) * work_s / pp + self._hops_s
        return np.where(self._leaves_gaps, np.maximum(bound_s, round_trip_s), bound_s) + self._after_s

    def has_room(self, limit_bytes: float, known_s: float) -> Array:
        """Whether stages that are no slower than a faster step allows, and fit, can hold all blocks."""
        pp, m = self._whole.family.pp, self._m
        in_time_s = known_s - self._after_s
        slowest_s = in_time_s / m
        of_round_trip_s = (in_time_s - self._hops_s - 2 * self._work_s) / np.maximum(1, m - pp - 1)
        slowest_s = np.where(self._leaves_gaps, np.minimum(slowest_s, of_round_trip_s), slowest_s)[:, None]
        room = np.zeros(len(m))
        for rank in range(pp):
            ends_s = sum(end for end, has in zip(self._ends_s, (rank == 0, rank == pp - 1), strict=True) if has)
            blocks = np.minimum((slowest_s - self._launch_s - ends_s) / self._block_s, self._fitting(rank, limit_bytes))
            stage = np.floor(blocks.max(1) + ROUNDING)
            room = np.where(stage >= 1, room + stage, -np.inf)
        return room >= self._layers

    def _fitting(self, rank: int, limit_bytes: float) -> Array:
        """Blocks that fit on a rank, at most; memory grows with them at least evenly."""
        whole, flat = self._whole, self.draft.ravel()
        hidden_bytes, precision = whole.hidden_bytes(flat), whole.problem.training.precision

        def needed(blocks: int) -> Array:
            columns = rank_columns(whole.family, whole.count[flat], np.full(len(flat), blocks), rank)
            lives, in_work, _ = rank_parts_bytes(columns, *self._parts, hidden_bytes, self._state, precision)
            return lives + in_work

        none, one = needed(0), needed(1)
        free = limit_bytes - whole.problem.cluster.device.reserved_memory_bytes - none
        return (free / (one - none)).reshape(self.draft.shape)
