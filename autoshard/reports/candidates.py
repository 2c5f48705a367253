"""Every layout that was priced, thinned to what a scatter can show: the front, the best of each kind, one a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError
from autoshard.planner.priced_columns import priced_columns
from autoshard.planner.search import search
from autoshard.plans.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoshard.planner.grid.arrays import Array

MOST_POINTS = 4_000
CELLS = 120
"""Of the scatter's width and height, in which layouts look alike."""
NUMBERS = ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size")
WORDS = ("recompute", "schedule")
FILTERS = ("tp", "pp", "cp", "ep", "recompute")


@dataclass(frozen=True)
class Candidates:
    """Priced layouts as columns (numpy, an entry a layout).

    total: priced in all. front: places of those that no other that fits beats in both time and memory, the fastest
    first.
    """

    columns: Mapping[str, Array]
    total: int
    front: tuple[int, ...]

    def packed(self) -> dict[str, Any]:
        """The columns as JSON values; words as indices into their lists."""
        found: dict[str, Any] = {name: self.columns[name].tolist() for name in NUMBERS}
        for name in WORDS:
            words, which = np.unique(self.columns[name], return_inverse=True)
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
    assert found.priced is not None
    columns = priced_columns(found.priced)
    return thinned(columns) if len(columns["tp"]) else None


def thinned(columns: Mapping[str, Array]) -> Candidates:
    """At most MOST_POINTS of the layouts. The Pareto front stays, then the fastest of each combination of FILTERS, then
    one for each cell of the picture, then the fastest."""
    seconds, size, fits = columns["step_time_s"], columns["memory_bytes"], columns["fits"]
    by_time = np.lexsort((size, seconds, ~fits))
    front = pareto(seconds, size, fits)
    words = np.array([np.unique(columns[name], return_inverse=True)[1].ravel() for name in FILTERS])
    _, kinds = np.unique(words, axis=1, return_inverse=True)
    cells = _cell(seconds) * CELLS + _cell(size)
    order = np.concatenate([front, _first_of(kinds, by_time), _first_of(cells, by_time), by_time])
    _, first = np.unique(order, return_index=True)
    kept = order[np.sort(first)][:MOST_POINTS]
    return Candidates(
        {name: column[kept] for name, column in columns.items()}, len(seconds), tuple(range(min(len(front), len(kept))))
    )


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


def _cell(values: Array) -> Array:
    scaled = np.log(values)
    spread = float(np.ptp(scaled)) or 1.0
    return ((scaled - scaled.min()) / spread * (CELLS - 1)).astype(int)
