"""The outer search over layouts whose operators the solver shards: which blocks are solved, and what is proven.

A block's Pareto set is found point by point: the fastest choices without a limit of memory, then those within what a
layout leaves, for every layout that a bound does not rule out. Each point is then priced in all layouts of its local
shape, with their cuts and their recompute sets by stage, as the search prices Megatron's choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.estimate import Estimate, estimate
from autoshard.cost.local_shape import LocalShape, local_shape, stage_mesh
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.planner.axis_orders import other_orders
from autoshard.planner.grid.order import fastest_first
from autoshard.planner.grid.refine import Known, refine
from autoshard.planner.grid.sharding_bounds import (
    AnyOrderTable,
    Least,
    LeastTable,
    block_limits_s,
    sets_at_least_s,
    step_times_at_least_s,
)
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.operators.improve import Solver
from autoshard.planner.ranking import Timed
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import recompute_sets, sets_by_stage
from autoshard.plans.search_result import Pins

WORTH = 1e-3
"""Share of the step that choices must save: below it a plan is as fast, and Megatron's choices are simpler."""
MOST_EFFORT = 60
"""Local shapes that are solved, those with two tensor-parallel axes counted ten times: they take half a second."""
MOST_BOUNDS, MOST_OWN_BOUNDS = 20, 30
"""Counted alike, solved without a limit of memory: of local shapes that differ in their microbatches alone the largest
one, then of those that may still be fastest each by itself. Ten times as many find nothing more for the 70B on 16
nodes, prove no smaller gap, and take three times as long."""
MOST_POINTS = 3
"""Layouts of a local shape whose memory leads to a point."""


@dataclass(frozen=True)
class Combined:
    """The best layout with solved operators. operators: what differs from Megatron's. estimate: with them. blocks,
    points: local shapes that were solved, and different choices that came of it. gap: no layout, however its operators
    are sharded, is faster by a larger share of the step (of `strategy` is None, of the one known before)."""

    strategy: Strategy | None
    operators: OperatorChoices
    estimate: Estimate | None
    blocks: int
    points: int
    gap: float


def combine(problem: Problem, pins: Pins, known_s: float, limit_bytes: float, exhaustive: bool = False) -> Combined:
    """The fastest layout with solved operators, of those that need no more than the limit and take less than known_s.

    exhaustive: solve whatever a bound does not rule out, however long that takes.

    Raises AutoshardError where HiGHS is not installed.
    """
    best: tuple[Timed, OperatorChoices] | None = None
    best_s, open_s, solved, points = known_s * (1 - WORTH), inf, 0, 0
    blocks = _Blocks(problem, pins, limit_bytes, best_s)
    bounds_left, left = (inf, inf) if exhaustive else (MOST_OWN_BOUNDS, MOST_EFFORT)
    for shape, least_s in blocks.all(best_s, inf if exhaustive else MOST_BOUNDS):
        effort = blocks.effort(shape)
        bounded = least_s < best_s and bounds_left >= effort
        if bounded:
            bounds_left -= effort
            least_s, limit_s = blocks.at_least_s(shape, best_s)
        if bounded and least_s < best_s and left >= effort:
            solved, left = solved + 1, left - effort
            seen: set[OperatorChoices | None] = {None, ()}
            for at_least_s, layout in blocks.layouts(shape, best_s)[: None if exhaustive else MOST_POINTS]:
                choices = blocks.point(shape, layout, limit_s) if at_least_s < best_s else None
                if choices in seen or choices is None:
                    continue
                seen.add(choices)
                points += 1
                timed = blocks.fastest(shape, choices, best_s)
                if timed is not None:
                    best, best_s = (timed, choices), timed.step_time_s
        open_s = min(open_s, least_s)
    if best is None:
        return Combined(None, (), None, solved, points, max(WORTH, 1 - open_s / known_s))
    cost = estimate(*problem[:3], best[0].strategy, operators=best[1])
    gap = max(0.0, 1 - open_s / cost.step_time_s)
    return Combined(best[0].strategy, best[1], cost, solved, points, gap)


class _Blocks:
    """The local shapes that a layout may have which shares operators among tensor-parallel ranks and takes less than
    known_s seconds."""

    def __init__(self, problem: Problem, pins: Pins, limit_bytes: float, known_s: float):
        self._problem, self._limit_bytes = problem, limit_bytes
        self._sets, self._by_stage = recompute_sets(problem, pins), sets_by_stage(pins)
        self._drafts: dict[LocalShape, list[Draft]] = {}
        self._solver, self._least = Solver(problem), dict[LocalShape, Least]()
        orders: dict[tuple[object, ...], tuple[tuple[str, ...], ...]] = {}
        legal = (mesh for mesh in legal_layouts(problem, pins, Tally()) if mesh.state_bytes <= limit_bytes)
        drafts = [draft for mesh in legal if mesh.way.tp > 1 for draft in mesh.drafts]
        in_any_order = AnyOrderTable(problem, self._sets, self._by_stage, {})
        for draft in drafts:
            in_any_order.add(draft)
        below = step_times_at_least_s(in_any_order, self._by_stage, limit_bytes, known_s)
        for draft in filter(below.__contains__, drafts):
            if draft[:5] not in orders:
                orders[draft[:5]] = (draft.axis_order, *other_orders(problem, pins, draft))
            for order in orders[draft[:5]]:
                ordered = draft._replace(axis_order=order)
                self._drafts.setdefault(local_shape(ordered), []).append(ordered)

    def all(self, known_s: float, effort: float) -> list[tuple[LocalShape, float]]:
        """(local shape, seconds that a step of it takes at least) of the shapes with layouts that may fit and take less
        than known_s seconds. Shapes that are fastest with Megatron's choices come first.

        effort: how much may be spent on solving blocks for better bounds, in the units of `effort`.
        """
        table = self._of_shapes([*self._drafts], {})
        bounds = self._bound(table, [*self._drafts], known_s)
        if bounds:
            solved = self._of_large_microbatches(block_limits_s(table, known_s), effort)
            bounds |= self._bound(self._of_shapes([*solved], solved), [*solved], known_s)
        least = {shape: min(bounds[draft] for draft in drafts) for shape, drafts in self._drafts.items()}
        by_rule = Table(self._problem, self._sets, self._by_stage)
        for draft in (draft for drafts in self._drafts.values() for draft in drafts):
            by_rule.add(draft)
        fastest = dict.fromkeys(least, inf)
        for chunk in by_rule.price():
            fits = chunk.memory_bytes <= self._limit_bytes
            fastest_s = np.full(len(chunk.whole.drafts.drafts), inf)
            np.minimum.at(fastest_s, chunk.draft[fits], chunk.step_time_s[fits])
            for place in np.flatnonzero(fastest_s < inf).tolist():
                shape = local_shape(chunk.whole.drafts.drafts[place])
                fastest[shape] = min(fastest[shape], float(fastest_s[place]))
        ranked = sorted(enumerate(least), key=lambda item: (fastest[item[1]], least[item[1]], item[0]))
        return [(shape, least[shape]) for _, shape in ranked]

    def _of_shapes(self, shapes: Iterable[LocalShape], solved: Mapping[LocalShape, Least]) -> LeastTable:
        return self._filled(solved, (draft for shape in shapes for draft in self._drafts[shape]))

    def _bound(self, table: LeastTable, shapes: Iterable[LocalShape], known_s: float) -> dict[Draft, float]:
        """Seconds that a step takes at least, by draft, of the drafts of which some layout may fit and take less than
        known_s seconds. The others are dropped for good. table: of the drafts of these shapes."""
        bounds = step_times_at_least_s(table, self._by_stage, self._limit_bytes, known_s)
        for shape in shapes:
            self._drafts[shape] = [one for one in self._drafts[shape] if one in bounds]
            if not self._drafts[shape]:
                del self._drafts[shape]
        return bounds

    def _of_large_microbatches(self, limits_s: Mapping[LocalShape, float], effort: float) -> dict[LocalShape, Least]:
        """The least seconds of blocks and ends by local shape, solved for the largest microbatch of the shapes that are
        alike in all else.

        A smaller one takes its share of that at least: nothing takes more for k microbatches at once than k times as
        long, while it takes less where it launches, fills tiles or adds to gradients once. What takes little effort
        comes first. limits_s: beyond which a block of each shape is of no interest.
        """
        families: dict[LocalShape, list[LocalShape]] = {}
        for shape in self._drafts:
            families.setdefault(replace(shape, microbatch_size=1), []).append(shape)
        by_shape: dict[LocalShape, Least] = {}
        for alike in sorted(families.values(), key=lambda alike: self.effort(alike[0])):
            effort -= self.effort(alike[0])
            if effort < 0:
                break
            largest = max(alike, key=lambda shape: shape.microbatch_size)
            parts = {shape: largest.microbatch_size / shape.microbatch_size for shape in alike}
            parts = {shape: part for shape, part in parts.items() if part.is_integer()}
            limit_s = max(part * limits_s[shape] for shape, part in parts.items())
            least = self._solver.fastest(even(self._problem, self._drafts[largest][0], self._sets[0]), limit_s)
            by_shape |= {shape: Least(*(seconds / part for seconds in least)) for shape, part in parts.items()}
        return by_shape

    def effort(self, shape: LocalShape) -> int:
        """How long it takes to solve a block of the shape, relative to one whose tensor parallelism is one axis."""
        mesh = stage_mesh(self._problem.model, self._problem.cluster, shape)
        return 10 if len(set(mesh.stage_axes) & set(TENSOR_PARALLEL_AXES)) > 1 else 1

    def _table(self, shape: LocalShape) -> LeastTable:
        """With what the integer program says of the block."""
        return self._filled({shape: self._least[shape]}, self._drafts[shape])

    def _filled(self, solved: Mapping[LocalShape, Least], drafts: Iterable[Draft]) -> LeastTable:
        table = LeastTable(self._problem, self._sets, self._by_stage, solved)
        for draft in drafts:
            table.add(draft)
        return table

    def at_least_s(self, shape: LocalShape, known_s: float) -> tuple[float, float]:
        """(seconds that a step of the shape's layouts takes at least, seconds that a block may take at most). The first
        is known_s where all of them take that long. Drafts that take that long are dropped for good."""
        drafts = self._drafts[shape]
        limit_s = block_limits_s(self._filled({}, drafts), known_s)[shape]
        self._least[shape] = self._solver.fastest(even(self._problem, drafts[0], self._sets[0]), limit_s)
        bounds = step_times_at_least_s(self._table(shape), self._by_stage, self._limit_bytes, known_s)
        self._drafts[shape] = list(bounds)
        return min(bounds.values(), default=known_s), limit_s

    def layouts(self, shape: LocalShape, known_s: float) -> list[tuple[float, Strategy]]:
        """(seconds that it takes at least, layout) of the shape's layouts that may take less than known_s seconds, cut
        evenly, with one recompute set for all stages; the fastest bound first. Their memory leads along the block's
        Pareto set."""
        if not self._drafts[shape]:
            return []
        bounds = sets_at_least_s(self._table(shape), self._limit_bytes, known_s)
        ranked = sorted(bounds.items(), key=lambda item: item[1])
        return [(seconds, even(self._problem, draft, recompute)) for (draft, recompute), seconds in ranked]

    def point(self, shape: LocalShape, layout: Strategy, limit_s: float) -> OperatorChoices | None:
        """The fastest choices of operators within the memory that the layout leaves; None where there are none.

        limit_s: seconds beyond which a block is of no interest.
        """
        return self._solver.within(shape, layout, self._limit_bytes, limit_s)

    def fastest(self, shape: LocalShape, choices: OperatorChoices, known_s: float) -> Timed | None:
        """The fastest of all layouts of a local shape with these operators; None where none takes less than known_s
        seconds."""
        table = Table(self._problem, self._sets, self._by_stage, choices)
        for draft in self._drafts[shape]:
            table.add(draft)
        chunks = [*table.price()]
        best = next(fastest_first(chunks, self._limit_bytes), None)
        if best is not None and best.step_time_s < known_s:
            known_s = best.step_time_s
        else:
            best = None
        wholes = {id(one.whole): one.whole for one in chunks}.values()
        refined = refine(wholes, self._by_stage, self._limit_bytes, Known(known_s)).found
        return Timed(refined[-1].step_time_s, refined[-1].strategy) if refined else best


def even(problem: Problem, draft: Draft, recompute: str) -> Strategy:
    """The draft as a strategy whose blocks are cut evenly and whose stages all recompute one set."""
    stages = draft.pp * draft.num_virtual_stages
    layers = even_stage_layers(problem.model.num_hidden_layers, stages)
    return Strategy(**{**draft._asdict(), "stage_layers": layers}, recompute=(recompute,) * stages)
