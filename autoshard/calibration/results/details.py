"""Writes every fitted constant by family and stack, and what leaving out one group or source changes, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from autoshard.calibration.results.held_out import StackFit
from autoshard.calibration.results.regimes import Interval
from autoshard.calibration.results.stack_fit import Values, constant


def fitted_constants(fit: StackFit, intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """All constants as JSON values, with their priors, numbers of points and mean errors; the intervals by regime."""
    entries = [_entry(key, value, fit.counts) for key, value in sorted(fit.values.items())]
    return {"constants": entries, "intervals": {name: vars(one) for name, one in intervals.items()}}


def left_out_constants(
    fit: StackFit, unseen: Mapping[str, Values], intervals: Mapping[str, Interval]
) -> dict[str, Any]:
    """Constants as JSON values: for each group, those that differ when it is left out; for each source, all of its
    devices' when it is left out."""
    return {
        "constants": {group: changed(own, fit.values) for group, own in sorted(fit.by_group.items())},
        "intervals": {name: vars(one) for name, one in intervals.items()},
        "unseen": {source: nested(own) for source, own in sorted(unseen.items())},
    }


def nested(values: Values) -> dict[str, dict[str, float]]:
    """All constants by owner and name, to four digits."""
    found: dict[str, dict[str, float]] = {}
    for (of, name), value in sorted(values.items()):
        found.setdefault(of, {})[name] = float(f"{value:.4g}")
    return found


def changed(values: Values, base: Values) -> dict[str, dict[str, float]]:
    """The constants that differ from `base` by more than 0.05 %, by owner and name, to four digits."""
    return nested({key: value for key, value in values.items() if abs(log(value / base[key])) > 5e-4})


def _entry(key: tuple[str, str], value: float, counts: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    of, name = key
    entry = {"of": of, "constant": name, "value": float(f"{value:.4g}"), "prior": constant(key).prior}
    if of in counts:
        entry |= {"points": counts[of][0], "mean_error": round(counts[of][1], 4)}
    return {**entry, "meaning": constant(key).meaning}
