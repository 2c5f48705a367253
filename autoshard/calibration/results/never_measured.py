"""Measures what results are missed by where something about them was never measured.

Each source is left out of the fit, then also every other result with the same format of numbers, kind of model or
device family, until nothing of that kind is left. Stacks are at their priors, as a user's is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from autoshard.calibration.results.constants import FAMILY
from autoshard.calibration.results.differences import LARGEST
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.regimes import Interval, interval
from autoshard.calibration.results.stack_fit import Linearised, Values, predictions, row_weights
from autoshard.cost.known import (
    DENSE,
    DEVICE,
    EXPERTS,
    HALF,
    KINDS,
    MODEL,
    UNKNOWN,
    Measured,
    Width,
    kind_of_results,
    measured_by,
    model_kind,
    never_measured,
    number_format,
    widened,
)

FEW_SOURCES = 3
"""With fewer sources than this, what a thing adds is no less than the most that any other adds: they do not tell."""
STUDENT = 1.7
"""An interval is widened by this much over the number of sources: as Student's t widens an interval of the next one of
so few (by 1.19 with nine). Without it new sources of simulated worlds lie inside eight times in ten."""


class Missed(NamedTuple):
    """One result, predicted without what is unknown. residual: log(measured / predicted). kind: of its model."""

    source: str
    unknown: tuple[str, ...]
    residual: float
    kind: str = DENSE


@dataclass(frozen=True)
class NeverMeasured:
    """Intervals of cases that were never measured. software: by kind of model, where only the stack is unknown, as
    mixtures of experts are missed by more than dense models. expected: log of the mean of measured / predicted there.
    widths: what each further unknown thing adds."""

    software: dict[str, Interval]
    expected: dict[str, float]
    widths: dict[str, Width]

    def of(self, unknown: Collection[str], kind: str = DENSE, known: Interval | None = None) -> Interval:
        """The interval of a case. kind: of its model. known: that of its stack, where the stack was measured."""
        base = known or self.software[kind_of_results(kind, unknown)]
        low, high = widened(base.low, base.high, (self.widths[name] for name in unknown))
        return Interval(low, high, base.memory_spread)


def chip(case: Case) -> str:
    """The device of a result, whatever its memory: that of "a100-80gb" is "a100"."""
    return hardware(case)[0].partition("-")[0]


def facts(case: Case) -> tuple[str, str, str]:
    """(device, kind of model, number format) of a result."""
    return chip(case), model_kind(case.model), number_format(case.training.precision)


def measured(cases: Iterable[Case]) -> dict[str, Measured]:
    """Kinds of models and number formats that were measured, by device. Devices of a family share its
    constants, so kinds and formats count for all."""
    timed = [case for case in cases if case.time_s]
    of_family = measured_by((hardware(case)[1], *facts(case)[1:]) for case in timed)
    return {chip(case): of_family[hardware(case)[1]] for case in timed}


def unknown(case: Case, known: Mapping[str, Measured]) -> tuple[str, ...]:
    return never_measured(known, *facts(case))


def missed(line: Linearised, unseen: Mapping[str, Values]) -> list[Missed]:
    """Every result of `line`, once for each thing that can be made unknown about it.

    line: the fit of all step times. unseen: by source, constants that were fitted without it.
    """
    found: list[Missed] = []
    for source, values in unseen.items():
        own = [case for case in line.cases if case.source == source]
        others = [case for case in line.cases if case.source != source]
        found += _missed(own, values, others)
        for name in UNKNOWN:
            found += _without(line, source, own, name)
    return found


def _without(line: Linearised, source: str, own: Sequence[Case], name: str) -> Iterator[Missed]:
    """Results of a source, each predicted without its source and without others that share what `name` says."""
    rest = [case for case in line.cases if case.source != source]
    if name == DEVICE:
        families = sorted({hardware(case)[1] for case in line.cases})
        for family, donor in permutations(families, 2):
            rows = [case for case in own if hardware(case)[1] == family]
            others = [case for case in rest if hardware(case)[1] != family]
            values = _fitted(line, [case for case in others if hardware(case)[1] == donor])
            lent = {(family, constant): value for (of, constant), value in values.items() if of == donor}
            yield from _missed(rows, lent, others)
        return
    place = UNKNOWN.index(name)
    for kind in sorted({facts(case)[place] for case in own} - {DENSE, HALF}):  # what every device has first
        rows = [case for case in own if facts(case)[place] == kind]
        others = [case for case in rest if facts(case)[place] != kind]
        yield from _missed(rows, _fitted(line, others), others)


def _fitted(line: Linearised, cases: Sequence[Case]) -> Values:
    """Constants of device families fitted to some of the cases of `line`, by one step; every stack at its prior."""
    chosen = {id(case) for case in cases}
    rows = np.array([id(case) in chosen for case in line.cases])
    values = line.solve(rows, row_weights(line.cases))
    return {key: value for key, value in values.items() if key[1] in FAMILY}


def _missed(rows: Sequence[Case], values: Values, others: Sequence[Case]) -> list[Missed]:
    known = measured(others)
    return [
        Missed(case.source, unknown(case, known), log((case.time_s or 0.0) / seconds), model_kind(case.model))
        for case, seconds in zip(rows, predictions(rows, values), strict=True)
    ]


def widths(found: Sequence[Missed], memory_spread: float) -> NeverMeasured:
    """The intervals that cover nine in ten of these, sources counting the same as groups do elsewhere.

    What one unknown thing adds to that of unknown software is the square of its interval less that of dense models by
    unknown software, never below zero; of dense models, but for what an unknown kind of model adds.
    """
    software = {
        kind: interval_of_sources([one for one in found if not one.unknown and one.kind == kind]) for kind in KINDS
    }
    base, few = software[DENSE], {one.source for one in found if not one.unknown and one.kind == EXPERTS}
    if len(few) < FEW_SOURCES:
        own = software[EXPERTS]
        software[EXPERTS] = Interval(min(own.low, base.low), max(own.high, base.high), own.memory_spread)
    added = {}
    for name in UNKNOWN:
        rows = [one for one in found if one.unknown == (name,) and (name == MODEL or one.kind == DENSE)]
        whole = interval_of_sources(rows)
        low, high = (sqrt(max(0.0, a * a - b * b)) for a, b in ((whole.low, base.low), (whole.high, base.high)))
        added[name] = Width(round(-low, 4), round(high, 4), len(rows), len({one.source for one in rows}))
    telling = [width for width in added.values() if width.sources >= FEW_SOURCES] or [*added.values()]
    low, high = min(width.low for width in telling), max(width.high for width in telling)
    for name, width in added.items():
        if width.sources < FEW_SOURCES:
            added[name] = replace(width, low=min(low, width.low), high=max(high, width.high))
    software = {kind: replace(own, memory_spread=memory_spread) for kind, own in software.items()}
    return NeverMeasured(software, {kind: round(_expected(found, kind), 4) for kind in KINDS}, added)


def interval_of_sources(rows: Sequence[Missed]) -> Interval:
    """The interval that covers nine in ten of such results of a source that is not among them."""
    own = interval([one.source for one in rows], [one.residual for one in rows], [None] * len(rows))
    sources = len({one.source for one in rows})
    wider = 1 + STUDENT / sources if sources >= FEW_SOURCES else 1.0
    return Interval(round(wider * own.low, 4), round(wider * own.high, 4), own.memory_spread)


def _expected(found: Sequence[Missed], kind: str) -> float:
    """Log of the mean of measured / predicted over sources with unknown software; large errors count as LARGEST."""
    ratios: dict[str, list[float]] = {}
    for one in found:
        if not one.unknown and one.kind == kind:
            ratios.setdefault(one.source, []).append(exp(float(np.clip(one.residual, -LARGEST, LARGEST))))
    return log(float(np.mean([np.mean(of) for of in ratios.values()]))) if ratios else 0.0
