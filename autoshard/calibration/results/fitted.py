"""Loads the constants of measured stacks: {fitted,left_out}.json, as `autoshard calibrate --details` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.never_measured import NeverMeasured, unknown
from autoshard.calibration.results.picks import Pick
from autoshard.calibration.results.published import CONSTANTS_FILE, LEFT_OUT_FILE
from autoshard.calibration.results.regimes import Interval
from autoshard.calibration.results.stack_fit import Values
from autoshard.cost.known import UNKNOWN, Measured, Width, model_kind
from autoshard.files.json_file import read_json

MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Known:
    """Which devices, kinds of models and precisions results have, and how far those that none has are missed."""

    measured: dict[str, Measured]
    never: NeverMeasured


@dataclass(frozen=True)
class Fitted:
    """Fitted constants. values: of all data. left_out: by group, fitted without it. intervals: by regime and by
    left-out group. unseen: by source, its devices' constants fitted without all of it. without_source: by source, what
    is known without it; by "", what is known of all. picks: the fastest by prediction of each group."""

    values: Values
    left_out: dict[str, Values]
    intervals: dict[str, Interval]
    left_out_intervals: dict[str, Interval]
    unseen: dict[str, Values]
    without_source: dict[str, Known]
    picks: list[Pick]

    def values_for(self, case: Case) -> Values:
        """The constants fitted without the case's own group; those of all data where that group was not fitted."""
        return {**self.values, **self.left_out.get(case.group, {})}

    def interval_for(self, case: Case, regime: str) -> Interval:
        """The interval of a case, wider for what was never measured of it."""
        own = self.left_out_intervals.get(f"{case.group} {regime}") or self.intervals.get(regime)
        known = self.without_source[""]
        missing = () if case.gpu == "cpu" else unknown(case, known.measured)  # each cpu is measured before
        return known.never.of(missing, model_kind(case.model), own)

    def unseen_interval_for(self, case: Case) -> Interval:
        """The interval of a case as if nothing of its source had been measured."""
        known = self.without_source[case.source]
        return known.never.of(unknown(case, known.measured), model_kind(case.model))


def load(folder: Path) -> Fitted:
    """The constants in the two files of a folder. Raises AutoshardError where one cannot be read."""
    fitted: Any = read_json(folder / CONSTANTS_FILE, "fitted constants", MOST_BYTES)
    left_out: Any = read_json(folder / LEFT_OUT_FILE, "left-out constants", MOST_BYTES)
    return Fitted(
        {(entry["of"], entry["constant"]): entry["value"] for entry in fitted["constants"]},
        {group: _values(entries) for group, entries in left_out["constants"].items()},
        {regime: Interval(**entry) for regime, entry in fitted["intervals"].items()},
        {key: Interval(**entry) for key, entry in left_out["intervals"].items()},
        {source: _values(entries) for source, entries in left_out["unseen"].items()},
        {source: _known(entries) for source, entries in left_out["without_source"].items()},
        [Pick(**one) for one in left_out["picks"]],
    )


def _known(entries: dict[str, Any]) -> Known:
    measured = {
        device: Measured(tuple(one["models"]), tuple(one["precisions"])) for device, one in entries["measured"].items()
    }
    widths = {name: Width(**entries[name]) for name in UNKNOWN}
    software = {kind: Interval(**one) for kind, one in entries["software"].items()}
    return Known(measured, NeverMeasured(software, entries["expected"], widths))


def _values(entries: dict[str, dict[str, float]]) -> Values:
    return {(of, name): value for of, constants in entries.items() for name, value in constants.items()}
