"""Which layouts stand beside the chosen one: the next fastest that a reader can tell from those before."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from autoshard.backends.problem import Problem
from autoshard.cost.estimate import estimate
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy
from autoshard.planner.ranking import Timed, in_order, kind
from autoshard.plans.search_result import Candidate
from autoshard.units import format_bytes, format_seconds

MOST_LOOKED_AT = 50
"""Where many layouts are one point, so many are looked at."""


def runners_up(
    problem: Problem, chosen: Candidate, ranked: Iterable[Timed], more: Iterable[Timed], top: int
) -> tuple[Candidate, ...]:
    """Up to `top` others, one of each kind and order of axes, without those that take as long and hold as much as one
    before, as pages show it: context parallelism in place of replicas, with as much larger microbatches, is the same
    point. ranked: the fastest, in order; the chosen one may be among them. more: those behind them, by rising step
    time, which are read only as far as they are needed."""
    model, training, cluster, _ = problem
    kinds = {_kind(chosen.strategy)}
    points = {_point(chosen.estimate.step_time_s, chosen.estimate.fullest.total_bytes)}
    others: list[Candidate] = []
    looked_at = 0
    for layout in chain(ranked, in_order(more)) if top else ():
        its = _kind(layout.strategy)
        if its in kinds:
            continue
        kinds.add(its)
        looked_at += 1
        if layout.memory_bytes is None or _point(layout.step_time_s, layout.memory_bytes) not in points:
            candidate = Candidate(layout.strategy, estimate(model, training, cluster, layout.strategy))
            point = _point(candidate.estimate.step_time_s, candidate.estimate.fullest.total_bytes)
            if point not in points:
                points.add(point)
                others.append(candidate)
        if len(others) == top or looked_at == MOST_LOOKED_AT:
            break
    return tuple(others)


def _kind(one: Strategy) -> tuple[object, ...]:
    return kind(one), one.axis_order == AXIS_ORDER


def _point(step_time_s: float, memory_bytes: float) -> tuple[str, str]:
    return format_seconds(step_time_s), format_bytes(memory_bytes)
