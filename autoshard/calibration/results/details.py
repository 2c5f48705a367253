"""Every fitted constant of every family and stack, and what leaving out one group or source changes, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from autoshard.calibration.results.held_out import StackFit
from autoshard.calibration.results.regimes import Interval
from autoshard.calibration.results.stack_fit import Values, constant


def fitted_constants(fit: StackFit, intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """All constants with their priors, points and mean errors; the intervals by regime."""
    entries = [_entry(key, value, fit.counts) for key, value in sorted(fit.values.items())]
    return {"constants": entries, "intervals": {name: vars(one) for name, one in intervals.items()}}


def left_out_constants(
    fit: StackFit, unseen: Mapping[str, Values], intervals: Mapping[str, Interval]
) -> dict[str, Any]:
    """What differs without each group; everything of the devices without each source."""
    return {
        "constants": {group: changed(own, fit.values) for group, own in sorted(fit.by_group.items())},
        "intervals": {name: vars(one) for name, one in intervals.items()},
        "unseen": {source: nested(own) for source, own in sorted(unseen.items())},
    }


def nested(values: Values) -> dict[str, dict[str, float]]:
    """All of them by owner, to four digits."""
    found: dict[str, dict[str, float]] = {}
    for (of, name), value in sorted(values.items()):
        found.setdefault(of, {})[name] = float(f"{value:.4g}")
    return found


def changed(values: Values, base: Values) -> dict[str, dict[str, float]]:
    """What differs by more than 0.05 %, to four digits."""
    return nested({key: value for key, value in values.items() if abs(log(value / base[key])) > 5e-4})


def _entry(key: tuple[str, str], value: float, counts: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    of, name = key
    entry = {"of": of, "constant": name, "value": float(f"{value:.4g}"), "prior": constant(key).prior}
    if of in counts:
        entry |= {"points": counts[of][0], "mean_error": round(counts[of][1], 4)}
    return {**entry, "meaning": constant(key).meaning}
