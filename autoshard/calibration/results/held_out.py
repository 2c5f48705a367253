"""Fits everything to results on GPUs, and predicts each group without it and each source as a new stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.calibration.results.constants import FAMILY
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.regimes import HeldOut
from autoshard.calibration.results.stack_fit import (
    Linearised,
    Values,
    capacity,
    estimates,
    fit,
    fitted_cases,
    left_out,
)


@dataclass(frozen=True)
class StackFit:
    """A fit to GPU results. values: fitted to all. line: the last linearisation of step times. by_group: constants
    fitted without one group. counts: number of points and mean error by what was fitted. timed: the results that
    families are fitted to. errors, left_out_errors: |predicted / measured - 1| of each of these, with all constants and
    without its group. held_out: residuals of all cases, each predicted without its group."""

    values: Values
    line: Linearised
    by_group: dict[str, Values]
    counts: dict[str, tuple[int, float]]
    timed: list[Case]
    errors: np.ndarray
    left_out_errors: np.ndarray
    held_out: HeldOut


def fit_stacks(cases: list[Case], said: Values | None = None) -> StackFit:
    """Fits step times by device family and stack together, then memory by source.

    said: of one's own results, what the hardware file says. Then only its constants are fitted, from there on: an
    error is that of the file, since no constant takes a part of it that the file does not have.
    """
    by_group: dict[str, Values] = {}
    counts: dict[str, tuple[int, float]] = {}

    def record(line: Linearised, of: str) -> None:
        error = np.abs(np.exp(line.residual[~line.only_fits]) - 1)
        counts[of] = (len(line.cases), float(error.mean()) if len(error) else 0.0)
        for group, own in left_out(line).items():
            by_group.setdefault(group, {}).update({key: own[key] for key in line.keys})

    timed, measured = fitted_cases(cases, memory=False), [] if said else fitted_cases(cases, memory=True)
    own = None if said is None else {key: value for key, value in said.items() if key[1] in FAMILY}
    values, times = fit(timed, said, own=own)
    errors = np.abs(np.exp(times.residual) - 1)
    record(times, "step times")
    for family in sorted({hardware(case)[1] for case in timed}):
        rows = [index for index, case in enumerate(timed) if hardware(case)[1] == family]
        counts[family] = (len(rows), float(errors[rows].mean()))
    for source in sorted({case.source for case in measured}):
        own, line = fit([case for case in measured if case.source == source], memory=True)
        values.update(own)
        record(line, f"memory of {source}")
    known = held_out(cases, values, by_group)
    of_case = {id(case): residual for case, residual in zip(cases, known.residuals, strict=True)}
    left_out_errors = np.abs(np.exp([-of_case[id(case)] for case in timed]) - 1)
    return StackFit(values, times, by_group, counts, timed, errors, left_out_errors, known)


def held_out(cases: Sequence[Case], values: Values, by_group: Mapping[str, Values]) -> HeldOut:
    """Residuals of all cases, each predicted with constants that were fitted without its group."""
    residuals = [float("nan")] * len(cases)
    memory: list[float | None] = [None] * len(cases)
    for group in sorted({case.group for case in cases}):
        rows = [i for i, case in enumerate(cases) if case.group == group]
        own = {**values, **by_group.get(group, {})}
        for i, one in zip(rows, estimates([cases[i] for i in rows], own), strict=True):
            if time_s := cases[i].time_s:
                residuals[i] = float(np.log(time_s / one.step_time_s))
            share = float(one.fullest.total_bytes / one.memory_capacity_bytes)
            if bytes_ := cases[i].memory_bytes:
                memory[i] = float(np.log(bytes_ / capacity(cases[i]) / share))
    return HeldOut(residuals, memory)


def unseen_stacks(cases: Sequence[Case], values: Values) -> dict[str, Values]:
    """Source -> constants as if its stacks had never been measured: its families fitted without it, starting from the
    fit of all, and every stack at its prior."""
    timed, found = fitted_cases(cases, memory=False), {}
    for source in sorted({case.source for case in timed}):
        families = {hardware(case)[1] for case in timed if case.source == source}
        others = [case for case in timed if case.source != source and hardware(case)[1] in families]
        found[source] = _without_stacks(fit(others, values, rounds=3)[0]) if others else {}
    return found


def _without_stacks(values: Values) -> Values:
    return {key: value for key, value in values.items() if key[1] in FAMILY}
