"""Every layout that was priced, thinned to what a scatter can show: the front, the best of each kind, one a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autoshard.cost.estimate import Estimate
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.priced import PricedLayouts
from autoshard.planner.priced_columns import estimated_columns, priced_columns, without
from autoshard.planner.search import search
from autoshard.plans.plan import Plan
from autoshard.plans.prices import is_cheap, unrounded
from autoshard.plans.search_result import SearchResult
from autoshard.units import percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autoshard.planner.grid.arrays import Array
    from autoshard.planner.grid.whole import Priced

MOST_POINTS = 4_000
CELLS = 120
"""Of the scatter's width and height, in which layouts look alike."""
NUMBERS = ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size", "zero")
WORDS = ("recompute", "schedule", "context_parallel")
Range = tuple[float, float]
"""The logarithms of the least and the most."""
FILTERS = ("tp", "pp", "cp", "ep", "recompute")


@dataclass(frozen=True)
class Candidates:
    """Priced layouts as columns (numpy, an entry a layout).

    total: priced in all. front: places of those that no other that fits is known to beat in both time and memory, the
    fastest first.
    """

    columns: Mapping[str, Array]
    total: int
    front: tuple[int, ...]

    def packed(self) -> dict[str, Any]:
        """The columns as JSON values; words as indices into their lists."""
        found: dict[str, Any] = {name: self.columns[name].tolist() for name in NUMBERS}
        chances = np.array([percent(one) for one in self.columns["fits_probability"].tolist()])
        for name, column in {**{name: self.columns[name] for name in WORDS}, "fits_with": chances}.items():
            words, which = np.unique(column, return_inverse=True)
            found[name] = {"words": words.tolist(), "which": which.ravel().tolist()}
        for name in ("step_time_s", "memory_bytes"):
            found[name] = [float(f"{value:.5g}") for value in self.columns[name].tolist()]
        for name in ("fits", "step_time_is_bound"):
            found[name] = self.columns[name].astype(int).tolist()
        return {**found, "front": list(self.front), "total": self.total, "filters": FILTERS}


def candidates(plan: Plan, limit_s: float) -> Candidates | None:
    """The layouts that a search on the plan's inputs prices; None where it finds none, as may be with a plan that was
    written for other rules. limit_s: seconds that the search may take."""
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    problem = plan.model, plan.training, plan.cluster, plan.pins, plan.backend
    try:
        found = search(*problem, top=0, time_limit_s=limit_s, fit_probability=sure)
    except AutoshardError:
        return None
    return candidates_of(plan, found)


def candidates_of(plan: Plan, found: SearchResult) -> Candidates | None:
    """The layouts that the search of a plan priced, the plan among them; None where it kept no prices."""
    priced = getattr(found, "priced", None)
    if priced is None:
        return None
    exact = {one.strategy: one.estimate for one in (found.best, *found.runners_up)}
    exact[plan.strategy] = unrounded(plan) if is_cheap(plan) else plan.estimate  # a plan's file has six digits
    return thinned(priced, exact)


def thinned(priced: PricedLayouts, exact: Mapping[Strategy, Estimate]) -> Candidates:
    """At most MOST_POINTS of the layouts. The Pareto front stays, then the fastest of each combination of
    FILTERS, then one for each cell of the picture, then the fastest.

    exact: layouts that were estimated one by one, at least one; what is priced of them, maybe a bound, is left out.
    """
    priced.price_pairs()
    every = [*priced.chunks, *(priced.others.chunks if priced.others else ())]
    chunks = [chunk for chunk in (without(chunk, exact) for chunk in every) if len(chunk.draft)]
    own = estimated_columns(exact, priced.problem.training)
    capacity_bytes = priced.problem.cluster.device.memory_bytes
    seconds = _range([own["step_time_s"], *(one.step_time_s for one in chunks)])
    size = _range([own["memory_bytes"], *(one.memory_bytes for one in chunks)])
    fewer = [_fewer(chunk, capacity_bytes, seconds, size) for chunk in chunks]
    parts = [priced_columns(PricedLayouts(priced.problem, fewer)), own] if fewer else [own]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in own}
    words = np.array([np.unique(columns[name], return_inverse=True)[1].ravel() for name in FILTERS])
    _, kinds = np.unique(words, axis=1, return_inverse=True)
    cells = _cell(columns["step_time_s"], seconds) * CELLS + _cell(columns["memory_bytes"], size)
    prices = columns["step_time_s"], columns["memory_bytes"], columns["fits"]
    front = known_front(*prices, columns["step_time_is_bound"])
    kept = _first(front, *prices, kinds, cells)[:MOST_POINTS]
    shown = {name: column[kept] for name, column in columns.items()}
    total = sum(len(one.draft) for one in chunks) + len(exact)
    return Candidates(shown, total, tuple(range(min(len(front), len(kept)))))


def _fewer(chunk: Priced, capacity_bytes: float, seconds: Range, size: Range) -> Priced:
    """The rows of a chunk that may be shown: columns of words cost more than all of this, so they come after it."""
    drafts = chunk.whole.drafts.drafts
    names = list(dict.fromkeys((draft.tp, draft.cp, draft.ep) for draft in drafts))
    degrees = np.array([names.index((draft.tp, draft.cp, draft.ep)) for draft in drafts])
    kinds = degrees[chunk.draft] * len(chunk.whole.sets) + chunk.recompute
    cells = _cell(chunk.step_time_s, seconds) * CELLS + _cell(chunk.memory_bytes, size)
    fits = chunk.memory_bytes <= capacity_bytes
    front = pareto(chunk.step_time_s, chunk.memory_bytes, fits)
    return chunk.take(_first(front, chunk.step_time_s, chunk.memory_bytes, fits, kinds, cells, all_of_them=False))


def _first(
    front: Array, seconds: Array, size: Array, fits: Array, kinds: Array, cells: Array, all_of_them: bool = True
) -> Array:
    """Places of layouts: the front, then the fastest of each kind, of each cell, then all others."""
    by_time = np.lexsort((size, seconds, ~fits))
    rest = (by_time,) if all_of_them else ()
    order = np.concatenate([front, _first_of(kinds, by_time), _first_of(cells, by_time), *rest])
    _, first = np.unique(order, return_index=True)
    return order[np.sort(first)]


def known_front(seconds: Array, size: Array, fits: Array, is_bound: Array) -> Array:
    """`pareto`, and with it those places of known times that lower bounds alone beat; the fastest first."""
    front = np.union1d(pareto(seconds, size, fits), pareto(seconds, size, fits & ~is_bound))
    return front[np.lexsort((size[front], seconds[front]))]


def pareto(seconds: Array, size: Array, fits: Array) -> Array:
    """Places of the layouts that fit and of which no other one that fits is both as fast and as small; the fastest
    first."""
    order = np.lexsort((size, seconds))
    order = order[fits[order]]
    least = np.minimum.accumulate(size[order])
    better = np.concatenate([[True], size[order][1:] < least[:-1]]) if len(order) else np.array([], bool)
    return order[better]


def _first_of(groups: Array, order: Array) -> Array:
    """For each group its first member in this order."""
    _, first = np.unique(groups.ravel()[order], return_index=True)
    return order[np.sort(first)]


def _range(values: Sequence[Array]) -> Range:
    return float(np.log(min(one.min() for one in values))), float(np.log(max(one.max() for one in values)))


def _cell(values: Array, within: Range) -> Array:
    low, high = within
    return ((np.log(values) - low) / ((high - low) or 1.0) * (CELLS - 1)).astype(int)
