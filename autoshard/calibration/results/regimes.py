"""Sorts measured layouts into regimes: rows of one regime are mispredicted alike, so they share an interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.calibration.results.constants import stack_of
from autoshard.calibration.results.gpu_rows import Case

COVERAGE = 0.9
UNMEASURED = "unmeasured"
OF_EXPERTS = ", experts"
FEW_GROUPS = 0.3
"""An interval is widened by this much over the number of groups: few groups resemble each other more than the next
one."""
FEW_RESULTS = 19
"""Fewer results than this do not tell a middle 90 %: 5 % of the next n + 1 are less than one. Their interval is then at
least that of stacks that were never measured."""
FP8_APART = ("NeMo", "Megatron-Bridge")
"""Stacks with so many results in FP8 and in half precision that each has an interval of its own."""
MEMORY_SPREAD = 0.08
"""Spread of the logarithm of memory where too few runs were measured."""


@dataclass(frozen=True)
class Interval:
    """The middle 90 % of held-out log(measured / predicted) of step times. memory_spread: standard deviation of
    log(memory)."""

    low: float
    high: float
    memory_spread: float


@dataclass(frozen=True)
class HeldOut:
    """Residuals of all cases, with constants that did not see the case's group. residuals: log(measured / predicted) of
    time, nan where none was measured. memory: log of the measured peak over the predicted one, None where none was
    measured."""

    residuals: Sequence[float]
    memory: Sequence[float | None]


def regime(case: Case) -> str:
    """The regime of a case: its stack, and whether its layout lies where that stack was fitted."""
    stack = stack_of(case.stack)[0] or UNMEASURED
    stack = stack.removesuffix(" compiled")  # what it is missed by, a stack is with or without compilation
    if case.model.is_moe:
        return f"{stack}{OF_EXPERTS}"
    if stack == UNMEASURED:
        return stack
    if stack in FP8_APART and case.low_precision:
        return f"{stack}, FP8"
    return f"{stack}, far from the fit" if not fitted_layout(case) else stack


def fitted_layout(case: Case) -> bool:
    """Whether constants are fitted to this layout. nanotron with pipelines, or with tensor parallelism across nodes, is
    left out: it is 3 to 6 times slower than any model here."""
    return not case.stack.lower().startswith("nanotron") or (case.strategy.pp == 1 and case.strategy.tp <= 8)


def interval_of(cases: Sequence[Case], held_out: HeldOut, rows: Sequence[int], unmeasured: Interval) -> Interval:
    """The interval of some rows of one regime, each group counting the same."""
    memory = [held_out.memory[i] for i in rows]
    own = interval([cases[i].group for i in rows], [held_out.residuals[i] for i in rows], memory)
    return at_least(own, sum(bool(cases[i].time_s) for i in rows), unmeasured)


def at_least(own: Interval, results: int, unmeasured: Interval) -> Interval:
    """The interval itself; where there are few results, made no narrower than that of stacks without any."""
    if results >= FEW_RESULTS:
        return own
    return Interval(min(own.low, unmeasured.low), max(own.high, unmeasured.high), own.memory_spread)


def interval(groups: Sequence[str], residuals: Sequence[float], memory: Sequence[float | None]) -> Interval:
    """The middle 90 % of residuals, each group weighted by the square root of its rows; a little wider where there are
    few groups."""
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
    """The value below which `share` of the weight lies. values, weights: [n]."""
    order = np.argsort(values)
    places = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(share, places, values[order]))
