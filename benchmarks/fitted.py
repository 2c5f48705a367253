"""The fitted constants as files: benchmarks/data/{fitted,left_out}.json, written only by `python -m benchmarks.fit`"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from benchmarks.fit import Values
from benchmarks.measured_rows import Case

DATA = Path(__file__).parent / "data"
FITTED, LEFT_OUT = DATA / "fitted.json", DATA / "left_out.json"


@dataclass(frozen=True)
class Interval:
    """Of log(measured / predicted): the middle 90 % of held-out residuals. memory_spread: of log(memory)."""

    low: float
    high: float
    memory_spread: float


@dataclass(frozen=True)
class Fitted:
    """values: of all data. left_out: by group, fitted without it. intervals: by regime and by left-out group.

    unseen: by source, of its devices, fitted without all of it.
    """

    values: Values
    left_out: dict[str, Values]
    intervals: dict[str, Interval]
    left_out_intervals: dict[str, Interval]
    unseen: dict[str, Values]

    def values_for(self, case: Case) -> Values:
        """Without the case's own group, where that was fitted."""
        return {**self.values, **self.left_out.get(case.group, {})}

    def interval_for(self, case: Case, regime: str) -> Interval:
        own = self.left_out_intervals.get(f"{case.group} {regime}")
        return own or self.intervals.get(regime) or self.intervals["unmeasured"]


def load() -> Fitted:
    fitted, left_out = (json.loads(path.read_text(encoding="utf-8")) for path in (FITTED, LEFT_OUT))
    return Fitted(
        {(entry["of"], entry["constant"]): entry["value"] for entry in fitted["constants"]},
        {group: _values(entries) for group, entries in left_out["constants"].items()},
        {regime: Interval(**entry) for regime, entry in fitted["intervals"].items()},
        {key: Interval(**entry) for key, entry in left_out["intervals"].items()},
        {source: _values(entries) for source, entries in left_out["unseen"].items()},
    )


def _values(entries: dict[str, dict[str, float]]) -> Values:
    return {(of, name): value for of, constants in entries.items() for name, value in constants.items()}


def nested(values: Values) -> dict[str, dict[str, float]]:
    """All of them by owner, to four digits."""
    found: dict[str, dict[str, float]] = {}
    for (of, name), value in sorted(values.items()):
        found.setdefault(of, {})[name] = float(f"{value:.4g}")
    return found


def changed(values: Values, base: Values) -> dict[str, dict[str, float]]:
    """What differs by more than 0.05 %, to four digits."""
    found: dict[str, dict[str, float]] = {}
    for (of, name), value in sorted(values.items()):
        if abs(log(value / base[(of, name)])) > 5e-4:
            found.setdefault(of, {})[name] = float(f"{value:.4g}")
    return found


def save(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
