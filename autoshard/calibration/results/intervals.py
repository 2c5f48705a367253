"""Computes how far the planner's estimates may be off (autoshard/cost/intervals.json), from held-out results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from autoshard.calibration.results import differences
from autoshard.calibration.results.constants import stack_of
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.calibration.results.never_measured import Missed, NeverMeasured, measured, widths
from autoshard.calibration.results.picks import (
    FEATURES,
    NOTHING,
    Pick,
    of_measured_features,
    of_new_features,
)
from autoshard.calibration.results.regimes import (
    MEMORY_SPREAD,
    OF_EXPERTS,
    UNMEASURED,
    HeldOut,
    Interval,
    interval,
    interval_of,
    regime,
)
from autoshard.cost.interval import CHOICE_WORDS
from autoshard.cost.known import DENSE, EXPERTS, Measured, model_kind


def regime_intervals(
    cases: Sequence[Case], known: HeldOut, never: NeverMeasured
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """(interval by regime, interval by "group regime" computed without that group)."""
    found, without = {UNMEASURED: never.software[DENSE], UNMEASURED + OF_EXPERTS: never.software[EXPERTS]}, {}
    for name in sorted({regime(case) for case in cases} - found.keys()):
        rows = [i for i, case in enumerate(cases) if regime(case) == name]
        unmeasured = never.software[EXPERTS if name.endswith(OF_EXPERTS) else DENSE]
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
    choices: dict[str, list[Any]] = {
        name: sorted({getattr(case.strategy, name) for case in cases}) for name in CHOICE_WORDS
    }
    choices["recompute"] = sorted({one for case in cases for one in case.strategy.recompute})
    return {"low": -width, "high": width, "results": len(groups), "groups": len(set(groups)), "choices": choices}


def of_unseen(cases: Sequence[Case], never: NeverMeasured, kind: str) -> dict[str, Any]:
    """The interval of one kind of model for software that was never measured, as JSON values."""
    own = [case for case in cases if model_kind(case.model) == kind]
    stacks = len({stack_of(case.stack)[0] for case in own})
    ends = {"low": never.software[kind].low, "high": never.software[kind].high}
    return {**ends, "expected": never.expected[kind], "results": len(own), "groups": stacks}


def of_widths(never: NeverMeasured) -> dict[str, Any]:
    """The width that each unknown thing adds to an interval, as JSON values."""
    return {name: vars(width) for name, width in never.widths.items()}


def of_measured(known: Mapping[str, Measured]) -> dict[str, Any]:
    """Kinds of models and number formats that were measured on each device, as JSON values."""
    return {device: {"models": list(one.models), "precisions": list(one.precisions)} for device, one in known.items()}


def of_picks(found: Sequence[Pick]) -> dict[str, Any]:
    """How much more the fastest layout by prediction is missed by than others, as JSON values."""
    nothing = [one for one in found if one.left_out == NOTHING]
    return {
        "measured_features": round(of_measured_features(found), 4),
        "new_features": round(of_new_features(found), 4),
        "groups": len(nothing),
        "features": len({one.left_out for one in found if one.new and one.left_out in FEATURES}),
    }


def without_source(cases: Sequence[Case], found: Sequence[Missed]) -> dict[str, Any]:
    """By source, what was measured and how far results are missed without it, as JSON values; "" is with all."""
    entries = {}
    for source in ("", *sorted({one.source for one in found})):
        never = widths([one for one in found if one.source != source], MEMORY_SPREAD)
        known = measured(case for case in cases if case.source != source)
        software = {"software": {kind: vars(one) for kind, one in never.software.items()}, "expected": never.expected}
        entries[source] = {"measured": of_measured(known), **software, **of_widths(never)}
    return entries


def of_differences(cases: Sequence[Case], known: HeldOut) -> dict[str, Any]:
    """How far the ratio of two step times may be off, as JSON values."""
    groups = differences.pairs(cases, known.residuals)
    inside = round(differences.coverage(groups), 3)
    counts = {"groups": len(groups), "pairs": sum(map(len, groups)), "held_out_coverage": inside}
    return {**counts, "squared_half_widths": differences.widths(groups)}
