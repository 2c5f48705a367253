"""Priced layouts in the other orders of their axes, as far as these may be faster than what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import accumulate

import numpy as np

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.passes import unit_work_s
from autoshard.cost.stage import LocalShape, local_shape, placement
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import State
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.planner.axis_orders import Order, other_orders
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_at_least_s
from autoshard.planner.grid.kind_choices import kinds_at_least_s
from autoshard.planner.grid.price import Family
from autoshard.planner.grid.refine import may_fit, promising
from autoshard.planner.grid.steps import Law
from autoshard.planner.grid.table import Table, Whole, shape_key
from autoshard.planner.grid.unit_costs import (
    PartColumns,
    StageColumns,
    as_columns,
    mean_columns,
    part_numbers,
    stage_law,
)
from autoshard.planner.grid.work_bounds import by_work_at_least_s
from autoshard.plans.search_result import Pins


def faster_orders(
    problem: Problem,
    wholes: Sequence[Whole],
    pins: Pins,
    known_s: float,
    others: Sequence[Draft] = (),
    least_s: Callable[[Draft], float] = lambda draft: 0.0,
    fitting: Set[Draft] = frozenset(),
) -> Iterator[Draft]:
    """Drafts in their other orders, but for those of which no layout fits or takes less than known_s. wholes: those
    that were priced. others: those that were not. least_s: what one that was takes at least in any order, as far as
    known. fitting: those of which it is known that some layout fits."""
    every = [*promising(wholes, known_s, least_s)]
    drafts = [draft for whole in every for draft in whole.drafts.drafts]
    if not drafts and not others:
        return
    orders = _Orders(problem, pins, [*drafts, *others])
    below = orders.at_least_s([*drafts, *others]) < known_s
    left = list[Draft]()
    for whole, end in zip(every, accumulate(len(one.drafts.drafts) for one in every), strict=True):
        places = np.flatnonzero(below[end - len(whole.drafts.drafts) : end])
        left += [whole.drafts.drafts[place] for place in _may_fit(whole, places, fitting).tolist()]
    left += [draft for draft, may in zip(others, below[len(drafts) :].tolist(), strict=True) if may]
    table = Table(problem, (NO_RECOMPUTE,))
    for draft in _below(problem, left, orders, known_s):
        table.add(draft)
    for whole in table.wholes():
        for place in np.flatnonzero(in_this_order_at_least_s(whole) < known_s).tolist():
            yield whole.drafts.drafts[place]


def _below(problem: Problem, drafts: Sequence[Draft], orders: _Orders, known_s: float) -> list[Draft]:
    """The drafts in their other orders, as far as the work of their stages may take less than known_s."""
    table = Table(problem, (NO_RECOMPUTE,))
    in_orders = [draft._replace(axis_order=order) for draft in drafts for order in orders.of(draft)]
    if not in_orders:
        return []
    shapes = np.array([table.shape(draft) for draft in in_orders], dtype=int)
    below = _work_at_least_s(problem, in_orders, table.parts, shapes) < known_s
    return [draft for draft, may in zip(in_orders, below.tolist(), strict=True) if may]


def _may_fit(whole: Whole, places: Array, fitting: Set[Draft]) -> Array:
    """The places of drafts that are known to fit, or may."""
    unsure = np.array([place for place in places.tolist() if whole.drafts.drafts[place] not in fitting], dtype=int)
    if not len(unsure):
        return places
    may = may_fit(whole.only(unsure), whole.problem.cluster.device.memory_bytes)
    return np.setdiff1d(places, unsure[~may], assume_unique=True)


class _Orders:
    """The other orders of every mesh, and bounds of drafts in all of them: as if each collective had the best of its
    laws, and nothing came behind the pipeline."""

    def __init__(self, problem: Problem, pins: Pins, drafts: Sequence[Draft]):
        self._problem, self._pins = problem, pins
        self._of: dict[tuple[object, ...], tuple[Order, ...]] = {}
        self._any: dict[tuple[object, ...], dict[Order, None]] = {}
        self._places = places = dict[tuple[object, ...], int]()
        shapes: list[LocalShape] = []
        for draft in drafts:
            if (key := shape_key(draft)) not in places:
                places[key] = len(shapes)
                shapes.append(_with_degrees(draft))
            if (degrees := (*draft[:5], draft.etp), draft.dp_replicate) not in self._of:
                found = self._of[degrees, draft.dp_replicate] = other_orders(problem, pins, draft)
                self._any.setdefault(degrees, {}).update(dict.fromkeys(found))
        self._parts = as_columns(problem, shapes, part_numbers(problem, shapes, (NO_RECOMPUTE,), laws=self._best_law))

    def of(self, draft: Draft) -> tuple[Order, ...]:
        return self._of[(*draft[:5], draft.etp), draft.dp_replicate]

    def _best_law(self, shape: LocalShape) -> Law:
        (tp, pp, dp, cp), ep = (degree for _, degree in shape.placement), shape.ep
        laws = [
            stage_law(self._problem, replace(shape, placement=placement(tp, pp, dp, cp, ep, order)))
            for order in self._any[tp, pp, dp, cp, ep, shape.etp]
        ]

        @cache
        def law(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
            by_order = [law_of(kind, axes) for law_of in laws]
            return CollectiveLaw(
                min((collective.latency_s for collective in by_order), default=0.0),
                min((collective.seconds_per_byte for collective in by_order), default=0.0),
            )

        return law

    def at_least_s(self, drafts: Sequence[Draft]) -> Array:
        """Seconds of a step, by draft, that it takes at least in any of its other orders."""
        rows = np.array([self._places[shape_key(draft)] for draft in drafts], dtype=int)
        return _work_at_least_s(self._problem, drafts, self._parts, rows)


def _with_degrees(draft: Draft) -> LocalShape:
    """The local shape of a draft; the placement says the degrees alone."""
    degrees = zip(("tp", "pp", "dp", "cp"), draft[:4], strict=True)
    return replace(local_shape(draft), placement=tuple(degrees))


def in_this_order_at_least_s(whole: Whole) -> Array:
    """Seconds of a step, by draft, in the order of axes that it has. whole: its first recompute set is `none`."""
    drafts, pp = np.arange(len(whole.drafts.drafts)), whole.family.pp
    if whole.has_kinds:
        return kinds_at_least_s(whole, drafts)
    *parts, state = whole.parts_of(drafts, np.zeros_like(drafts))
    sizes = pp, whole.family.num_virtual_stages, whole.problem.model.num_hidden_layers
    after_s = after_at_least_s(*sizes, whole.states, whole.state)
    return _at_least_s(whole, parts, state, after_s)


def _work_at_least_s(problem: Problem, drafts: Sequence[Draft], columns: StageColumns, rows: Array) -> Array:
    """Seconds of a step, by draft, that no cut and no recompute sets take less than: those of the work of one
    microbatch in all stages, without what travels beside it and what follows the pipeline.

    columns: of parts, nothing recomputed. rows: of each draft in them.
    """
    found = np.zeros(len(drafts))
    counts = [count for _, count in problem.model.kind_counts(0, problem.model.num_hidden_layers)]
    block = mean_columns([one.take(rows) for one in columns.blocks], [np.full(1, count) for count in counts])
    block_s = block.forward_s + block.backward_s
    m = np.array([problem.training.global_batch_size // (draft.dp * draft.microbatch_size) for draft in drafts])
    families: dict[Family, list[int]] = {}
    for place, draft in enumerate(drafts):
        families.setdefault(Family(draft.schedule, draft.pp, draft.num_virtual_stages), []).append(place)
    for family, places in families.items():
        first, last = columns.ends(rows[places], family.pp == 1)
        ends_s = first.forward_s + first.backward_s, last.forward_s + last.backward_s
        found[places] = by_work_at_least_s(problem, family, m[places], block_s[places], ends_s)
    return found


def _at_least_s(whole: Whole, parts: Sequence[PartColumns], state: State, after_s: Array) -> Array:
    """Seconds of a step, by draft, that no cut and no recompute sets take less than.

    parts: of one microbatch, nothing recomputed: of a block and of the ends. after_s: once a step, behind the pipeline.
    """
    per_parameter = accumulation_s_per_parameter(whole.problem.training.precision, whole.problem.cluster.device)
    block_s, *ends_s = (unit_work_s(part, unit, per_parameter) for part, unit in zip(parts, state[:3], strict=True))
    forward_s, ends = parts[0].forward_s, (ends_s[0], ends_s[1])
    return by_work_at_least_s(whole.problem, whole.family, whole.count, block_s, ends, forward_s=forward_s) + after_s
