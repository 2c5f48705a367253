"""Layouts in the other orders of their axes, as far as these may be faster than what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import islice

import numpy as np

from autoshard.backends.rules import Draft, Problem
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.planner.axis_orders import Order, other_orders
from autoshard.planner.grid.mesh_bounds import layout_bounds
from autoshard.planner.grid.promises import may_fit, promising
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.unit_costs import mean_columns
from autoshard.planner.grid.whole import Whole
from autoshard.planner.layouts import MeshDrafts, Scheduled, by_way, together
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins


def faster_orders(
    problem: Problem,
    wholes: Sequence[Whole],
    pins: Pins,
    known_s: float,
    others: Sequence[MeshDrafts] = (),
    least_s: Callable[[Draft], float] = lambda draft: 0.0,
    fitting: Set[Draft] = frozenset(),
) -> Iterator[Draft]:
    """Drafts in their other orders, but for those of which no layout fits or takes less than known_s. wholes: those
    that were priced. others: those that were not. least_s: what one that was takes at least in any order, as far as
    known. fitting: those of which it is known that some layout fits."""
    priced = (draft for whole in promising(wholes, known_s, least_s) for draft in _that_may_fit(whole, fitting))
    in_orders = _in_other_orders(problem, pins, together([*by_way(priced), *others]))
    ways = _below(problem, pins, in_orders, known_s)
    if ways:
        left = _below(problem, pins, ways, known_s, _blocks_s(problem, ways))
        yield from (draft for one in left for draft in one.drafts)


def _below(
    problem: Problem,
    pins: Pins,
    ways: Sequence[MeshDrafts],
    known_s: float,
    blocks_s: Sequence[Mapping[int, tuple[float, float]]] | None = None,
) -> list[MeshDrafts]:
    """The layouts of these ways, each in its own order of axes, that may take less than known_s. blocks_s: as of
    `layout_bounds`."""
    if not ways:
        return []
    sets, limit_bytes = recompute_sets(problem, pins), problem.cluster.device.memory_bytes
    bounds = layout_bounds(problem, ways, sets, limit_bytes, below_s=known_s, blocks_s=blocks_s)
    may = bounds.step_time_s < known_s
    left: dict[int, list[Scheduled]] = {}
    for place, schedule in zip(bounds.way[may].tolist(), bounds.schedule[may].tolist(), strict=True):
        left.setdefault(place, []).append(ways[place].schedules[schedule])
    return [ways[place]._replace(schedules=schedules) for place, schedules in left.items()]


def _blocks_s(problem: Problem, ways: Sequence[MeshDrafts]) -> list[dict[int, tuple[float, float]]]:
    """Seconds of forward and of backward of the mean block in the order of axes of each way, by size of microbatches,
    nothing recomputed."""
    table = Table(problem, (NO_RECOMPUTE,))
    sizes = [{size: one.way.scheduled(name, vpp, size) for name, vpp, size in one.schedules} for one in ways]
    shapes = [table.shape(draft) for of_way in sizes for draft in of_way.values()]
    block = mean_columns(table.parts.blocks, [np.full(1, count) for count in problem.blocks.counts])
    rows = zip(*(column[shapes].tolist() for column in (block.forward_s, block.backward_s)), strict=True)
    return [dict(zip(of_way, islice(rows, len(of_way)), strict=True)) for of_way in sizes]


def _that_may_fit(whole: Whole, fitting: Set[Draft]) -> Iterator[Draft]:
    """The drafts that are known to fit, or may."""
    drafts = whole.drafts.drafts
    yield from (draft for draft in drafts if draft in fitting)
    unsure = [place for place, draft in enumerate(drafts) if draft not in fitting]
    if unsure:
        may = may_fit(whole.only(np.array(unsure)), whole.problem.cluster.device.memory_bytes)
        yield from (drafts[place] for place, fits in zip(unsure, may.tolist(), strict=True) if fits)


def _in_other_orders(problem: Problem, pins: Pins, ways: Sequence[MeshDrafts]) -> list[MeshDrafts]:
    """The layouts in each other order of axes that is worth a look."""
    known: dict[tuple[object, ...], tuple[Order, ...]] = {}
    found = list[MeshDrafts]()
    for one in ways:
        degrees = (*one.way[:5], one.way.etp, one.way.dp_replicate)
        if degrees not in known:
            known[degrees] = other_orders(problem, pins, one.way)
        found += [one._replace(way=one.way._replace(axis_order=order)) for order in known[degrees]]
    return found
