"""Measures how far a predicted difference of two layouts is off, from pairs of held-out results.

A pair is two layouts of one model on one machine. An error that both share (of the machine, the stack, the model)
cancels; what is left grows with what differs between the layouts. `autoshard.cost.interval.difference_factors` applies
this to the planner's own layouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.regimes import COVERAGE, fitted_layout, weighted_quantile
from autoshard.cost.interval import CHANGES, changes

Pair = tuple[Case, Case, float]
MOST_PAIRS = 500
"""The most pairs that are taken from one group."""
NOISY = ("ultrascale",)
"""Sources that are left out: their repeats differ by more (median 16 %) than most layouts are missed by."""
REPEATS = 0.03
"""Spread of the logarithm of a measured time; the difference of any two is at least as uncertain."""
LARGEST = 0.3
"""A larger difference of logarithms counts as this one, so that outliers in published tables do not widen
everything."""


def pairs(cases: Sequence[Case], residuals: Sequence[float]) -> list[list[Pair]]:
    """Pairs by group: (one, other, difference of their residuals log(measured / predicted)), where only the layout
    differs."""
    groups: dict[tuple[object, ...], list[tuple[Case, float]]] = defaultdict(list)
    for case, residual in zip(cases, residuals, strict=True):
        if np.isfinite(residual) and fitted_layout(case) and not case.source.startswith(NOISY):
            alike = (case.group, case.stack, case.model, case.training, case.nodes, case.gpu, case.fused_norm)
            groups[alike].append((case, residual))
    found = []
    for members in groups.values():
        all_pairs = [(a, b, one - other) for (a, one), (b, other) in combinations(members, 2)]
        if all_pairs:
            found.append(all_pairs[:: -(-len(all_pairs) // MOST_PAIRS)])
    return found


def widths(groups: Sequence[Sequence[Pair]]) -> dict[str, float]:
    """Squared half widths of the 90 % interval of the difference: for any two layouts, and for each change between
    them.

    Non-negative least squares on the squared differences, scaled until 90 % of the pairs lie inside. A group is
    weighted by the square root of its number of pairs.
    """
    rows = [(changes(a.strategy, b.strategy), off) for group in groups for a, b, off in group]
    weights = np.array([1 / np.sqrt(len(group)) for group in groups for _ in group])
    A = np.array([[1.0, *(change[name] for name in CHANGES)] for change, _ in rows])
    off = np.array([abs(one) for _, one in rows])
    left, right = (A * weights[:, None]).T @ np.minimum(off, LARGEST) ** 2, (A * weights[:, None]).T @ A
    shares = np.full(A.shape[1], 0.01)
    for _ in range(2000):  # multiplicative updates stay above zero
        shares *= left / np.maximum(right @ shares, 1e-12)
        shares[0] = max(shares[0], 2 * REPEATS**2)
    scale = weighted_quantile(off / np.sqrt(A @ shares), weights, COVERAGE)
    squares = shares * scale**2
    return {name: round(float(one), 5) for name, one in zip(("any", *CHANGES), squares, strict=True)}


def coverage(groups: Sequence[Sequence[Pair]]) -> float:
    """Share of pairs inside their intervals, 0 to 1. Each group is left out of the widths in turn and weighted by the
    square root of its number of pairs."""
    inside = total = 0.0
    for index, group in enumerate(groups):
        found = widths([*groups[:index], *groups[index + 1 :]])
        for a, b, off in group:
            change = changes(a.strategy, b.strategy)
            square = found["any"] + sum(found[name] * change[name] for name in CHANGES)
            inside += (off**2 <= square) / np.sqrt(len(group))
            total += 1 / np.sqrt(len(group))
    return inside / total
