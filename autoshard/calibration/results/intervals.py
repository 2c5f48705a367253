"""Computes how far the planner's estimates may be off (autoshard/cost/intervals.json), from held-out results."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from autoshard.calibration.results.constants import stack_of
from autoshard.calibration.results.differences import coverage, pairs, widths
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.calibration.results.regimes import UNMEASURED, HeldOut, Interval, interval, interval_of, regime


def regime_intervals(
    cases: Sequence[Case], known: HeldOut, unmeasured: Interval
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """(interval by regime, interval by "group regime" computed without that group)."""
    found, without = {UNMEASURED: unmeasured}, {}
    for name in sorted({regime(case) for case in cases} - {UNMEASURED}):
        rows = [i for i, case in enumerate(cases) if regime(case) == name]
        found[name] = interval_of(cases, known, rows, unmeasured)
        for group in sorted({cases[i].group for i in rows}):
            if others := [i for i in rows if cases[i].group != group]:
                without[f"{group} {name}"] = interval_of(cases, known, others, unmeasured)
    return found, dict(sorted(without.items()))


def of_instance(cases: Sequence[InstanceCase], left_out_s: Sequence[float]) -> dict[str, Any]:
    """The interval for an instance type that has results of its own, as JSON values."""
    ratios = [log(case.time_s / seconds) for case, seconds in zip(cases, left_out_s, strict=True)]
    groups = [case.group for case in cases]
    found = interval(groups, ratios, [None] * len(groups))
    width = max(-found.low, found.high)
    return {"low": -width, "high": width, "results": len(groups), "groups": len(set(groups))}


def of_unseen(cases: Sequence[Case], unmeasured: Interval) -> dict[str, Any]:
    """The interval for a stack that was never measured, as JSON values."""
    stacks = len({stack_of(case.stack)[0] for case in cases})
    return {"low": unmeasured.low, "high": unmeasured.high, "results": len(cases), "groups": stacks}


def of_differences(cases: Sequence[Case], known: HeldOut) -> dict[str, Any]:
    """How far the ratio of two step times may be off, as JSON values."""
    groups = pairs(cases, known.residuals)
    counts = {"groups": len(groups), "pairs": sum(map(len, groups)), "held_out_coverage": round(coverage(groups), 3)}
    return {**counts, "squared_half_widths": widths(groups)}
