"""Fits the packaged hardware files, and the intervals of the planner's estimates, to published results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.calibration.calibration import today
from autoshard.calibration.results import collective_fit, instance_fit
from autoshard.calibration.results.collective_rows import CollectiveCase
from autoshard.calibration.results.details import fitted_constants, left_out_constants
from autoshard.calibration.results.effects import effects_of
from autoshard.calibration.results.fit_file import Content, add_collectives, add_results, hardware_content
from autoshard.calibration.results.gpu_files import FILES, set_family, set_guesses
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.held_out import fit_stacks, unseen_stacks
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.calibration.results.intervals import (
    of_differences,
    of_instance,
    of_measured,
    of_picks,
    of_unseen,
    of_widths,
    regime_intervals,
    without_source,
)
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.never_measured import chip, measured, missed, widths
from autoshard.calibration.results.pages import evidence_line
from autoshard.calibration.results.picks import picks
from autoshard.calibration.results.regimes import MEMORY_SPREAD
from autoshard.calibration.results.usable import AnyCase, Usable, read_results
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import FILE as INTERVALS
from autoshard.cost.interval import UNMEASURED, UNMEASURED_KINDS
from autoshard.cost.known import Measured, measured_by, model_kind, number_format
from autoshard.spec.hardware_file import FOLDER
from autoshard.spec.sdk import FILE as SDK

ALIKE = {"trn1.32xlarge": ("trn1.32xlarge", "trn1n.32xlarge")}
"""Instance type -> files whose chips and links are the same, where there is more than one."""
INTERVALS_FILE, SDK_FILE, CONSTANTS_FILE, LEFT_OUT_FILE = "intervals.json", "sdk.json", "fitted.json", "left_out.json"


class Published:
    """All that is fitted to published results. hardware: contents by instance type. intervals: of estimates. sdk: of
    releases. details: constants of stacks, by file name. page: lines to print."""

    def __init__(self) -> None:
        self.hardware: dict[str, Content] = {}
        self.intervals: Content = json.loads(INTERVALS.read_text(encoding="utf-8"))
        self.sdk: Content = json.loads(SDK.read_text(encoding="utf-8"))
        self.details: dict[str, Content] = {}
        self.page: list[str] = []

    def content(self, name: str) -> Content:
        if name not in self.hardware:
            self.hardware[name] = hardware_content(FOLDER / f"{name}.json")
        return self.hardware[name]


def fit_published(results: Sequence[Path], collectives: Path | None, progress: Callable[[str], None]) -> Published:
    """Fits everything that the files have results for, from priors that are not fits themselves.

    Raises AutoshardError as read_results does.
    """
    found, out = read_results(results, collectives), Published()
    out.page = found.notes()
    if found.collectives is not None:
        progress(_about(found.collectives))
        _fit_collectives(found.collectives, out)
    if found.gpus is not None:
        progress(_about(found.gpus))
        _fit_gpus(found.gpus, out)
    if found.instances is not None:
        progress(_about(found.instances))
        _fit_instances(found.instances, out)
    return out


def _about(found: Usable[AnyCase]) -> str:
    return f"fitting to {len(found.cases)} rows of {found.path.name}"


def fitted_to(case: InstanceCase) -> bool:
    """Whether published constants are fitted to a case: of an instance that has some, whole, of a stated release."""
    return case.cluster.instance in instance_fit.PUBLISHED and not case.doubt and case.sdk is not None


def left_out_of_published(cases: Sequence[InstanceCase], published: Sequence[InstanceCase]) -> list[float]:
    """Seconds of each case with constants fitted to all published cases but those of its own group; of a case on an
    instance that nothing is fitted to with the packaged ones."""
    found: dict[int, float] = {}
    for name, constants in instance_fit.PUBLISHED.items():
        own = [case for case in published if fitted_to(case) and case.cluster.instance == name]
        asked = [case for case in cases if case.cluster.instance in ALIKE.get(name, (name,)) and case not in own]
        content = hardware_content(FOLDER / f"{name}.json")
        together = [*own, *asked]
        problem = instance_fit.Problem(together, constants, content, effects=effects_of(together))
        rows = np.array([1.0] * len(own) + [0.0] * len(asked))
        at = instance_fit.fit(problem, rows)
        seconds = instance_fit.left_out_predictions(problem, at, rows)
        found |= dict(zip(map(id, together), seconds, strict=True))
        found |= {id(case): seconds[own.index(case)] for case in cases if case in own}
    return [
        found[id(case)]
        if id(case) in found
        else estimate(case.model, case.training, case.cluster, case.strategy, case.software).step_time_s
        for case in cases
    ]


def _fit_collectives(found: Usable[CollectiveCase], out: Published) -> None:
    for name in dict.fromkeys(case.cluster.instance for case in found.cases):
        cases = [case for case in found.cases if case.cluster.instance == name]
        if name not in collective_fit.PUBLISHED:
            out.page.append(f"{name}: {len(cases)} times of collectives are not fitted to")
            continue
        _, lines = add_collectives(
            out.content(name), replace(found, cases=cases, unused=[]), collective_fit.PUBLISHED[name]
        )
        out.page += lines


def _fit_instances(found: Usable[InstanceCase], out: Published) -> None:
    _count_unfitted(found, out)
    for name in dict.fromkeys(case.cluster.instance for case in found.cases):
        if name not in instance_fit.PUBLISHED:
            continue
        cases = [case for case in found.cases if case.cluster.instance == name and fitted_to(case)]
        out.page += _unfitted(case for case in found.cases if case.cluster.instance == name and not fitted_to(case))
        contents = [out.content(one) for one in ALIKE.get(name, (name,))]
        read_with = hardware_content(FOLDER / f"{name}.json")
        fit, lines = add_results(
            contents,
            replace(found, cases=cases, unused=[]),
            instance_fit.PUBLISHED[name],
            read_with,
            effects=effects_of(cases),
        )
        out.page += lines
        out.sdk["platforms"][cases[0].cluster.layout_rules] = {"from": _origin(found), **fit.beside}
        if fit.left_out_s is not None:
            regimes = out.intervals["regimes"]
            spread = regimes[UNMEASURED]["memory_spread"]
            own = of_instance(cases, fit.left_out_s)
            regimes[name.partition(".")[0]] = {**own, "memory_spread": spread, "from": _origin(found)}
            _add_measured(out, {name.partition(".")[0]: _instance_facts(cases)})


def _add_measured(out: Published, known: Mapping[str, Measured]) -> None:
    out.intervals["measured"] = {**out.intervals.get("measured", {}), **of_measured(known)}


def _instance_facts(cases: Sequence[InstanceCase]) -> Measured:
    """The kinds of models and number formats measured on one instance type."""
    facts = (("", model_kind(case.model), number_format(case.training.precision)) for case in cases)
    return measured_by(facts)[""]


def _count_unfitted(found: Usable[InstanceCase], out: Published) -> None:
    """Notes the generations that nothing is fitted to, with their results of training all weights."""
    fitted = {name.partition(".")[0] for name in instance_fit.PUBLISHED}
    by_generation: dict[str, list[InstanceCase]] = {}
    for case in found.cases:
        if case.software.adapts:
            continue
        by_generation.setdefault(case.cluster.instance.partition(".")[0], []).append(case)
    regimes = out.intervals["regimes"]
    for name, cases in by_generation.items():
        if name not in fitted:
            counts = {"results": len(cases), "groups": len({case.group for case in cases})}
            like = regimes[UNMEASURED]
            ends = {end: like[end] for end in ("low", "high", "memory_spread")}
            regimes[name] = {**ends, **counts, "fitted": False, "from": _origin(found)}
            out.page.append(f"{name}: {len(cases)} training results are not fitted to")


def _unfitted(cases: Iterable[InstanceCase]) -> Iterator[str]:
    for case in cases:
        yield f"not fitted to {case.key}: {case.doubt or 'its release of the SDK is not stated'}"


def _fit_gpus(found: Usable[Case], out: Published) -> None:
    cases = [case for case in found.cases if case.trusted]
    fit = fit_stacks(cases)
    unseen = unseen_stacks(cases, fit.values)
    found_missed = missed(fit.line, unseen)
    never = widths(found_missed, MEMORY_SPREAD)
    by_regime, without = regime_intervals(cases, fit.held_out, never)
    for name, family in FILES.items():
        if family in fit.counts:
            set_guesses(out.content(name), family)
            of = set_family(out.content(name), family, fit, found)
            out.page.append(evidence_line(name, of))
    origin = _origin(found)
    regimes = out.intervals["regimes"]
    for kind, name in UNMEASURED_KINDS.items():
        regimes[name] = {**of_unseen(cases, never, kind), "memory_spread": MEMORY_SPREAD, "from": origin}
    known = measured(fit.line.cases)
    devices = {file: known[one] for file, one in sorted({(hardware(case)[0], chip(case)) for case in fit.line.cases})}
    others = out.intervals.get("measured", {})
    out.intervals["measured"] = {name: one for name, one in others.items() if name not in FILES}
    _add_measured(out, devices)
    out.intervals["never_measured"] = {**of_widths(never), "from": origin}
    picked = picks(fit.line)
    out.intervals["picks"] = {**of_picks(picked), "from": origin}
    out.intervals["differences"] = {**of_differences(cases, fit.held_out), "from": origin}
    out.details = {
        CONSTANTS_FILE: {"from": origin, **fitted_constants(fit, by_regime)},
        LEFT_OUT_FILE: {
            "from": origin,
            **left_out_constants(fit, unseen, without),
            "picks": [{**vars(one), "pick": round(one.pick, 4), "all": round(one.all, 4)} for one in picked],
            "without_source": without_source(fit.line.cases, found_missed),
        },
    }


def _origin(found: Usable[Any]) -> dict[str, Any]:
    return {"data": found.path.name, "sha256": found.sha256, "date": today()}
