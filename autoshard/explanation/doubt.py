"""Two layouts beside each other, term by term: numbers for `--why` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, log, sqrt

from autoshard.cost.interval import difference_factors, regime_of, regimes, toss_up
from autoshard.cost.values import Estimate, Term
from autoshard.plans.search_result import Candidate
from autoshard.spec.cluster import Cluster

NINETY = 1.6449
"""Standard deviations on either side of the middle 90 % of a normal distribution."""


@dataclass(frozen=True)
class Pair:
    """A term in both. Seconds or bytes."""

    name: str
    one: float
    other: float

    @property
    def difference(self) -> float:
        """What `other` has more."""
        return self.other - self.one


@dataclass(frozen=True)
class Doubt:
    """How sure it is that one layout is slower than another by what is predicted.

    low, high: the other's step time over the first one's lies between them with 90 % probability.
    first_is_faster: probability. toss_up: either may be the faster one.
    """

    low: float
    high: float
    first_is_faster: float
    toss_up: bool


def doubt(cluster: Cluster, one: Candidate, other: Candidate) -> Doubt:
    """Of two layouts of one training on one cluster; nothing is unsure between two equal ones."""
    ratio = other.estimate.step_time_s / one.estimate.step_time_s
    low, high = difference_factors(cluster, one.strategy, other.strategy)
    spread = log(high / low) / 2 / NINETY
    middle = log(ratio) + log(low * high) / 2
    faster = 0.5 * (1 + erf(middle / spread / sqrt(2))) if spread else 0.5
    seconds = one.estimate.step_time_s, other.estimate.step_time_s
    either = toss_up(cluster, one.strategy, seconds[0], other.strategy, seconds[1])
    return Doubt(ratio * low, ratio * high, faster, either)


def memory_interval(cluster: Cluster, estimate: Estimate) -> tuple[float, float]:
    """Bytes of the fullest rank, 90 %."""
    used, spread = estimate.fullest.total_bytes, regimes()[regime_of(cluster)].memory_spread
    return used * exp(-NINETY * spread), used * exp(NINETY * spread)


def pairs(one: Sequence[Term], other: Sequence[Term]) -> tuple[Pair, ...]:
    """Every term of either, the largest difference first."""
    ours, theirs = ({term.name: term.value for term in terms} for terms in (one, other))
    names = dict.fromkeys((*ours, *theirs))
    found = (Pair(name, ours.get(name, 0.0), theirs.get(name, 0.0)) for name in names)
    return tuple(sorted(found, key=lambda pair: -abs(pair.difference)))
