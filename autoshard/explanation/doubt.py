"""How sure it is which of two layouts is faster, and their terms side by side: numbers for `--why` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, log, sqrt

from autoshard.cost.interval import difference_factors, regime_of, regimes, toss_up
from autoshard.cost.values import Estimate, Term
from autoshard.plans.search_result import Candidate
from autoshard.spec.cluster import Cluster

NINETY = 1.6449
"""Half width, in standard deviations, of the middle 90 % of a normal distribution."""


@dataclass(frozen=True)
class Pair:
    """One term in two estimates. one, other: seconds or bytes."""

    name: str
    one: float
    other: float

    @property
    def difference(self) -> float:
        """How much more `other` has, in the unit of the term."""
        return self.other - self.one


@dataclass(frozen=True)
class Doubt:
    """How sure it is which of two layouts is faster.

    low, high: the second's step time over the first's lies between these with 90 % probability. first_is_faster: a
    probability. toss_up: either may be the faster one.
    """

    low: float
    high: float
    first_is_faster: float
    toss_up: bool


def doubt(cluster: Cluster, one: Candidate, other: Candidate) -> Doubt:
    """How sure the order of two layouts of one training on one cluster is. Two equal layouts have no uncertainty."""
    ratio = other.estimate.step_time_s / one.estimate.step_time_s
    low, high = difference_factors(cluster, one.strategy, other.strategy)
    spread = log(high / low) / 2 / NINETY
    middle = log(ratio) + log(low * high) / 2
    faster = 0.5 * (1 + erf(middle / spread / sqrt(2))) if spread else 0.5
    seconds = one.estimate.step_time_s, other.estimate.step_time_s
    either = toss_up(cluster, one.strategy, seconds[0], other.strategy, seconds[1])
    return Doubt(ratio * low, ratio * high, faster, either)


def memory_interval(cluster: Cluster, estimate: Estimate) -> tuple[float, float]:
    """The 90 % interval (low, high) of the memory of the fullest rank, bytes."""
    used, spread = estimate.fullest.total_bytes, regimes()[regime_of(cluster)].memory_spread
    return used * exp(-NINETY * spread), used * exp(NINETY * spread)


def pairs(one: Sequence[Term], other: Sequence[Term]) -> tuple[Pair, ...]:
    """Every term that either estimate has, the largest difference first."""
    ours, theirs = ({term.name: term.value for term in terms} for terms in (one, other))
    names = dict.fromkeys((*ours, *theirs))
    differences = (Pair(name, ours.get(name, 0.0), theirs.get(name, 0.0)) for name in names)
    return tuple(sorted(differences, key=lambda pair: -abs(pair.difference)))
