"""Computes scores of predictions against measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from autoshard.cost.fit_probability import LOWER
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.layout.strategy import Strategy
from autoshard.planner.ranking import Timed
from autoshard.planner.toss_ups import simplest_of_equals
from autoshard.spec.cluster import Cluster

KEYS = (
    "rows",
    "unscored",
    "mape",
    "median_ape",
    "worst_ape",
    "fits_accuracy",
    "false_fit",
    "false_oom",
    "memory_mape",
    "coverage90",
    "spearman",
    "regret_mean",
    "regret_max",
    "oom_picks",
)


@dataclass(frozen=True)
class Scored:
    """One row with its prediction. predicted_share: of the device's memory; None where the row says nothing of memory.
    cluster, strategy: the layout and what it ran on. is_stated: whether all of the layout is known."""

    key: str
    sources: tuple[str, ...]
    group: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float | None
    predicted_share: float
    measured_share: float | None
    fits_probability: float
    fits: bool
    cluster: Cluster
    strategy: Strategy
    is_stated: bool = True

    @property
    def error(self) -> float | None:
        return None if self.measured_s is None else abs(self.predicted_s / self.measured_s - 1)


def score(rows: Sequence[Scored], unscored: int) -> dict[str, float | int | None]:
    """One line of the scoreboard; None where the rows say nothing. Fractions, not percent.

    fits accuracy only where the source reports both runs that fit and runs that do not; false_fit and false_oom are
    shares of all its rows.
    """
    errors = [row.error for row in rows if row.error is not None]
    memory = [abs(row.predicted_share / row.measured_share - 1) for row in rows if row.measured_share]
    inside = [row.low_s <= row.measured_s <= row.high_s for row in rows if row.measured_s is not None]
    both = len({row.fits for row in rows}) == 2
    ranks, regrets, failures = _by_group(rows)
    wrong_fit = sum(row.predicted_share <= 1 and not row.fits for row in rows)
    wrong_oom = sum(row.predicted_share > 1 and row.fits for row in rows)
    return {
        "rows": len(rows),
        "unscored": unscored,
        "mape": mean(errors) if errors else None,
        "median_ape": median(errors) if errors else None,
        "worst_ape": max(errors) if errors else None,
        "fits_accuracy": 1 - (wrong_fit + wrong_oom) / len(rows) if both else None,
        "false_fit": wrong_fit / len(rows) if both else None,
        "false_oom": wrong_oom / len(rows) if both else None,
        "memory_mape": mean(memory) if memory else None,
        "coverage90": mean(inside) if inside else None,
        "spearman": mean(ranks) if ranks else None,
        "regret_mean": mean(regrets) if regrets else None,
        "regret_max": max(regrets) if regrets else None,
        "oom_picks": failures,
    }


def _by_group(rows: Iterable[Scored]) -> tuple[list[float], list[float], int | None]:
    """(Spearman of groups of 3 and more, regret of the pick of groups of 2 and more, picks out of memory)."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    ranks, regrets, failures, picks = [], [], 0, 0
    for members in groups.values():
        timed = [row for row in members if row.measured_s is not None]
        if len(timed) >= 3 and (rank := spearman(timed)) is not None:
            ranks.append(rank)
        if len(members) < 2 or not timed:
            continue
        picks += 1
        chosen = pick(members)
        if not chosen.fits:
            failures += 1
        elif chosen.measured_s is not None:
            regrets.append(chosen.measured_s / min(row.measured_s for row in timed if row.measured_s) - 1)
    return ranks, regrets, failures if picks else None


def pick(rows: Sequence[Scored]) -> Scored:
    """The run that the planner (autoshard/planner) would take: the fastest by prediction of those that fit surely
    enough, or the simpler of two that are equally fast; where none is likely to fit, the one most likely to."""
    for probability in (FIT_PROBABILITY, *LOWER):
        sure = sorted((row for row in rows if row.fits_probability >= probability), key=lambda row: row.predicted_s)
        if sure:
            ranked = [Timed(row.predicted_s, row.strategy) for row in sure]
            return sure[simplest_of_equals(sure[0].cluster, ranked)]
    return max(rows, key=lambda row: row.fits_probability)


def spearman(rows: Sequence[Scored]) -> float | None:
    """Rank correlation of predicted and measured time; None where either is the same everywhere."""
    first = _ranks([row.predicted_s for row in rows])
    second = _ranks([row.measured_s or 0.0 for row in rows])
    middle = (len(rows) - 1) / 2
    spread = [sum((rank - middle) ** 2 for rank in ranks) for ranks in (first, second)]
    if not all(spread):
        return None
    together = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    return float(together / (spread[0] * spread[1]) ** 0.5)


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for index in order[start:stop]:
            ranks[index] = (start + stop - 1) / 2
        start = stop
    return ranks
