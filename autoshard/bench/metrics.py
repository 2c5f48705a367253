"""How good predictions are: errors, fits, picks, intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import exp, log
from statistics import mean, median
from typing import NamedTuple

from autoshard.bench.rows import Measured


class Prediction(NamedTuple):
    """A prediction of a result: seconds of a step, the ends of their 90 % interval, bytes of the fullest device; None
    where the predictor says nothing of memory."""

    step_time_s: float
    low_s: float
    high_s: float
    memory_bytes: float | None = None


class Scores(NamedTuple):
    """The scores of a predictor; None where the rows do not say. Fractions, not per cent.

    rows: predicted, with a measured time; unpredicted: rows that it has no answer to. mean_error, median_error: of
    |predicted / measured - 1|; error_of_groups, error_of_sources: the mean over groups and over sources of the mean, so
    that each has one vote. bias: exp(mean log(predicted / measured)) - 1. fits_right: share of runs, of sources with
    runs that fit and runs that do not, that are said right. regret: mean over groups of what the pick takes longer than
    the fastest; regret_of_sources: the mean over sources of that; picks_out_of_memory: groups whose pick does not fit.
    coverage: share of measured times in the interval. width: median of high over low.
    """

    rows: int
    unpredicted: int
    mean_error: float | None
    median_error: float | None
    error_of_groups: float | None
    error_of_sources: float | None
    bias: float | None
    fits_right: float | None
    regret: float | None
    regret_of_sources: float | None
    picks_out_of_memory: float | None
    coverage: float | None
    width: float | None


EQUAL = 1e-9
"""Share of a step by which predictions may differ and be one."""
Pair = tuple[Measured, Prediction]


def scores(rows: Sequence[Measured], predictions: Sequence[Prediction | None]) -> Scores:
    """The scores of predictions of these rows, one each; None for a row without an answer."""
    pairs = [(row, one) for row, one in zip(rows, predictions, strict=True) if one is not None]
    timed = [(row, one, row.time_s) for row, one in pairs if row.time_s is not None]
    errors = [abs(one.step_time_s / time_s - 1) for _, one, time_s in timed]
    by_group: dict[str, list[float]] = defaultdict(list)
    by_source: dict[str, list[float]] = defaultdict(list)
    for (row, _, _), error in zip(timed, errors, strict=True):
        by_group[row.group].append(error)
        by_source[row.source].append(error)
    regrets, out_of_memory = _picks(pairs)
    inside = [one.low_s <= time_s <= one.high_s for _, one, time_s in timed]
    return Scores(
        len(timed),
        len(rows) - len(pairs),
        _of(mean, errors),
        _of(median, errors),
        _of(mean, [mean(of_group) for of_group in by_group.values()]),
        _of(mean, [mean(of_source) for of_source in by_source.values()]),
        exp(mean(log(one.step_time_s / time_s) for _, one, time_s in timed)) - 1 if timed else None,
        _of(mean, _fits(pairs)),
        _of(mean, [regret for of_source in regrets.values() for regret in of_source]),
        _of(mean, [mean(of_source) for of_source in regrets.values()]),
        out_of_memory,
        _of(mean, inside),
        _of(median, [one.high_s / one.low_s for _, one, _ in timed]),
    )


def _of(how: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return float(how(values)) if values else None


def _fits(pairs: Sequence[Pair]) -> list[bool]:
    """Whether each run is said right, of sources with both kinds and of predictions of memory."""
    outcomes: dict[str, set[bool]] = defaultdict(set)
    for row, _ in pairs:
        outcomes[row.source].add(row.fits)
    return [
        (one.memory_bytes <= row.capacity_bytes) == row.fits
        for row, one in pairs
        if len(outcomes[row.source]) == 2 and one.memory_bytes is not None
    ]


def _picks(pairs: Sequence[Pair]) -> tuple[dict[str, list[float]], float | None]:
    """(by source, of its groups of two and more: how much longer the pick takes than the fastest; picks that do not
    fit). Of layouts that are predicted to be equally fast each is as likely to be the pick."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for row, one in pairs:
        groups[row.group].append((row, one))
    regrets: dict[str, list[float]] = defaultdict(list)
    failures, picks = 0.0, 0
    for members in groups.values():
        times = [row.time_s for row, _ in members if row.time_s is not None]
        if len(members) < 2 or not times:
            continue
        picks += 1
        said = [pair for pair in members if _is_said_to_fit(*pair)] or members
        least_s = min(one.step_time_s for _, one in said) * (1 + EQUAL)
        equals = [row for row, one in said if one.step_time_s <= least_s]
        taken = [row.time_s for row in equals if row.time_s is not None]
        failures += 1 - len(taken) / len(equals)
        if taken:
            regrets[members[0][0].source].append(mean(taken) / min(times) - 1)
    return regrets, failures if picks else None


def _is_said_to_fit(row: Measured, one: Prediction) -> bool:
    return one.memory_bytes is None or one.memory_bytes <= row.capacity_bytes
