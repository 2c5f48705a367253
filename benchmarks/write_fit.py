"""Runs all fits and writes their files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.cost.interval import FILE as INTERVALS
from autoshard.spec.hardware_file import FOLDER
from benchmarks.constants import FAMILY, FIXED, stack_of
from benchmarks.differences import coverage, pairs, widths
from benchmarks.fit import Linearised, Values, capacity, constant, estimates, fit, fitted_cases, left_out, predictions
from benchmarks.fit_trainium import left_out_predictions
from benchmarks.fitted import FITTED, LEFT_OUT, Interval, changed, nested, save
from benchmarks.machine import FAMILIES, hardware
from benchmarks.measured_rows import Case, Unscored, gpu_case
from benchmarks.regimes import UNMEASURED, HeldOut, interval, interval_of, regime
from benchmarks.trainium_rows import trainium_case


def write(path: Path) -> None:
    """Fits step times by device family and memory by stack; from both, intervals and what each group's absence does."""
    cases = read(path)
    values, by_group, counts = _fit_all(cases)
    known = held_out(cases, values, by_group)
    without_source = unseen_stacks(cases, values)
    unmeasured = interval([case.source for case in cases], *_unseen_residuals(cases, without_source))
    found, without = {UNMEASURED: unmeasured}, {}
    for name in sorted({regime(case) for case in cases} - {UNMEASURED}):
        rows = [i for i, case in enumerate(cases) if regime(case) == name]
        found[name] = interval_of(cases, known, rows, unmeasured)
        for group in {cases[i].group for i in rows}:
            if others := [i for i in rows if cases[i].group != group]:
                without[f"{group} {name}"] = vars(interval_of(cases, known, others, unmeasured))
    now = datetime.now(timezone.utc).date().isoformat()
    about = {"written_by": "python -m benchmarks.fit", "data": path.name, "date": now}
    constants = [_entry(key, value, counts) for key, value in sorted(values.items())]
    save(FITTED, {**about, "constants": constants, "intervals": {name: vars(one) for name, one in found.items()}})
    different = {group: changed(own, values) for group, own in sorted(by_group.items())}
    unseen = {source: nested(own) for source, own in sorted(without_source.items())}
    intervals_without = dict(sorted(without.items()))
    save(LEFT_OUT, {**about, "constants": different, "intervals": intervals_without, "unseen": unseen})
    _write_hardware(values, counts, now, path.name)
    _write_intervals(cases, known.residuals, unmeasured, about)


def read(path: Path) -> list[Case]:
    """Every row that can be scored."""
    cases = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                case = gpu_case(row)
                hardware(case)
            except Unscored:
                continue
            cases.append(case)
    return cases


def _fit_all(cases: list[Case]) -> tuple[Values, dict[str, Values], dict[str, tuple[int, float]]]:
    """(constants, constants by left-out group, points and mean error by what was fitted)."""
    values: Values = {}
    by_group: dict[str, Values] = {}
    counts: dict[str, tuple[int, float]] = {}

    def record(line: Linearised, of: str) -> None:
        error = np.abs(np.exp(line.residual[~line.only_fits]) - 1)
        counts[of] = (len(line.cases), float(error.mean()) if len(error) else 0.0)
        for group, own in left_out(line).items():
            by_group.setdefault(group, {}).update({key: own[key] for key in line.keys})

    timed, measured = fitted_cases(cases, memory=False), fitted_cases(cases, memory=True)
    values, line = fit(timed)
    record(line, "step times")
    for family in sorted({hardware(case)[1] for case in timed}):
        rows = [index for index, case in enumerate(line.cases) if hardware(case)[1] == family]
        counts[family] = (len(rows), float(np.abs(np.exp(line.residual[rows]) - 1).mean()))
    for source in sorted({case.source for case in measured}):
        own, line = fit([case for case in measured if case.source == source], memory=True)
        values.update(own)
        record(line, f"memory of {source}")
    return values, by_group, counts


def held_out(cases: list[Case], values: Values, by_group: dict[str, Values]) -> HeldOut:
    """Each group predicted without it."""
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


def unseen_stacks(cases: list[Case], values: Values) -> dict[str, Values]:
    """By source, constants of its families fitted without it, from the fit of all on; every stack's are at their
    priors."""
    timed, found = fitted_cases(cases, memory=False), {}
    for source in sorted({case.source for case in timed}):
        families = {hardware(case)[1] for case in timed if case.source == source}
        others = [case for case in timed if case.source != source and hardware(case)[1] in families]
        found[source] = _without_stacks(fit(others, values, rounds=3)[0]) if others else {}
    return found


def _unseen_residuals(cases: list[Case], unseen: dict[str, Values]) -> tuple[list[float], list[float | None]]:
    """As held_out, but as if nothing of a row's source had been measured."""
    residuals = [float("nan")] * len(cases)
    memory: list[float | None] = [None] * len(cases)
    fitted = set(fitted_cases(cases, memory=False))
    for source, own in unseen.items():
        rows = [i for i, case in enumerate(cases) if case.source == source and case in fitted]
        for i, seconds in zip(rows, predictions([cases[i] for i in rows], own), strict=True):
            residuals[i] = float(np.log((cases[i].time_s or 0) / seconds))
    return residuals, memory


def _without_stacks(values: Values) -> Values:
    return {key: value for key, value in values.items() if key[1] in FAMILY}


def _entry(key: tuple[str, str], value: float, counts: dict[str, tuple[int, float]]) -> dict[str, Any]:
    of, name = key
    entry = {"of": of, "constant": name, "value": float(f"{value:.4g}"), "prior": constant(key).prior}
    if of in counts:
        entry |= {"points": counts[of][0], "mean_error": round(counts[of][1], 4)}
    return {**entry, "meaning": constant(key).meaning}


def _write_intervals(cases: list[Case], residuals: Sequence[float], unseen: Interval, about: dict[str, str]) -> None:
    """What the planner's own estimates say of their error: as on trn1, or as with a stack that was never measured."""
    with (FITTED.parent / "measured_trainium.csv").open(encoding="utf-8", newline="") as file:
        measured = [trainium_case(row) for row in csv.DictReader(file)]
    ratios = [
        float(np.log(case.time_s / seconds))
        for case, seconds in zip(measured, left_out_predictions(measured), strict=True)
    ]
    groups = [case.group for case in measured]
    trn1 = interval(groups, ratios, [None] * len(groups))
    width = max(-trn1.low, trn1.high)
    stacks = len({stack_of(case.stack)[0] for case in cases})
    content = {
        "trn1": {"low": -width, "high": width, "results": len(groups), "groups": len(set(groups))},
        "unmeasured": {"low": unseen.low, "high": unseen.high, "results": len(cases), "groups": stacks},
    }
    for one in content.values():
        one["memory_spread"] = unseen.memory_spread
    about = {**about, "data": "measured_trainium.csv and measured_gpu.csv"}
    note = "memory_spread: of published GPU runs that were held out; no memory on Trainium was published"
    save(INTERVALS, {**about, "note": note, "regimes": content, "differences": _differences(cases, residuals)})


def _differences(cases: list[Case], residuals: Sequence[float]) -> dict[str, Any]:
    """How far the ratio of two step times may be off."""
    groups = pairs(cases, residuals)
    counts = {"groups": len(groups), "pairs": sum(map(len, groups)), "held_out_coverage": round(coverage(groups), 3)}
    return {**counts, "squared_half_widths": widths(groups)}


def _write_hardware(values: Values, counts: dict[str, tuple[int, float]], date: str, data: str) -> None:
    """The calibration section of each GPU's hardware file."""
    for name, family in FAMILIES_OF_FILES.items():
        path = FOLDER / f"{name}.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        points, error = counts[family]
        source = f"fitted by benchmarks/fit.py on {date} to {points} results on {family.upper()} in {data}"
        source += f", mean error {error:.1%}"
        if family not in name:
            source += "; none of them on this device"
        calibration = content["calibration"]
        calibration["about"] = source
        for target, constant_name in TARGETS.items():
            fitted = values.get((family, constant_name))
            value = FIXED[constant_name] if fitted is None else fitted
            value = min(value, 1.0) if target.endswith(("efficiency", "by_chips")) else value
            entry = {"value": float(f"{value:.4g}"), "source": GUESS if fitted is None else source}
            if target == "link_efficiency_by_chips":
                calibration[target] = {str(content["chips_per_node"]["value"]): entry}
            else:
                calibration[target] = entry
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


FAMILIES_OF_FILES = {
    "a100-40gb": "a100",
    "a100-80gb": "a100",
    "h100-80gb": "h100",
    "h200-141gb": "h100",
    "b200-180gb": "h100",
    "gb200-186gb": "h100",
}
assert set(FAMILIES_OF_FILES.values()) == set(FAMILIES.values())
GUESS = "guess: FIXED of benchmarks/constants.py, which says why it is not fitted"
TARGETS = {
    "matmul_efficiency": "matmul_efficiency",
    "matmul_k0": "matmul_k0",
    "memory_efficiency": "memory_efficiency",
    "pass_launch_s": "pass_launch_s",
    "collective_launch_s": "collective_launch_s",
    "hop_latency_s": "hop_latency_s",
    "link_efficiency_by_chips": "link_efficiency",
    "adapter_efficiency": "network_efficiency",
    "inter_node_hop_latency_s": "network_hop_latency_s",
    "all_to_all_efficiency": "all_to_all_efficiency",
}
"""Key of the hardware file's calibration -> constant."""
