"""Where a measured layout lies: rows of one regime are missed alike, so they share an interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log

import numpy as np

from benchmarks.constants import stack_of
from benchmarks.fitted import Interval
from benchmarks.measured_rows import Case

COVERAGE = 0.9
UNMEASURED = "unmeasured"
FEW_GROUPS = 0.3
"""How much wider, over the number of groups: the next group is less like few groups than they are like each other."""
MEMORY_SPREAD = 0.08
"""Of the logarithm of memory where too few runs were measured."""


def regime(case: Case) -> str:
    """Stack, and whether the layout lies where that stack was fitted."""
    stack = stack_of(case.stack)[0]
    if stack is None:
        return UNMEASURED
    return f"{stack}, far from the fit" if not fitted_layout(case) else stack


def fitted_layout(case: Case) -> bool:
    """nanotron with pipelines or tensor parallelism across nodes is 3 to 6 times slower than any model here."""
    return not case.stack.lower().startswith("nanotron") or (case.strategy.pp == 1 and case.strategy.tp <= 8)


def intervals(cases: Sequence[Case], residuals: Sequence[float], memory: Sequence[float | None]) -> dict[str, Interval]:
    """By regime, from residuals log(measured / predicted) that were held out; whole groups count alike."""
    found = {}
    for name in sorted({regime(case) for case in cases}):
        rows = [index for index, case in enumerate(cases) if regime(case) == name]
        found[name] = interval([cases[i].group for i in rows], [residuals[i] for i in rows], [memory[i] for i in rows])
    return found


def interval(groups: Sequence[str], residuals: Sequence[float], memory: Sequence[float | None]) -> Interval:
    """The middle 90 % of residuals in which each group weighs as the square root of its rows; a little more where there
    are few groups."""
    by_group: dict[str, list[float]] = defaultdict(list)
    for group, residual in zip(groups, residuals, strict=True):
        if np.isfinite(residual):
            by_group[group].append(residual)
    spread = [one for one in memory if one is not None]
    memory_spread = max(0.03, float(np.quantile(np.abs(spread), 0.68))) if len(spread) >= 10 else MEMORY_SPREAD
    values = np.array([value for values in by_group.values() for value in values])
    if len(values) < 3:
        return Interval(-0.25, 0.25, memory_spread)
    weights = np.array([1 / np.sqrt(len(values)) for values in by_group.values() for _ in values])
    tail = (1 - COVERAGE) / 2 * len(by_group) / (len(by_group) + 1)
    wider = 1 + FEW_GROUPS / len(by_group)
    low, high = (wider * weighted_quantile(values, weights, share) for share in (tail, 1 - tail))
    return Interval(round(min(low, -0.01), 4), round(max(high, 0.01), 4), round(memory_spread, 4))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The value below which that share of the weight lies."""
    order = np.argsort(values)
    places = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(share, places, values[order]))


def log_ratio(measured: float, predicted: float) -> float:
    return log(measured / predicted)
