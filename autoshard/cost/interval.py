"""How far a prediction may be off: the middle 90 % of what held-out measurements were missed by.

`intervals.json`, written by `python -m benchmarks.fit` alone, holds it by regime: results of one regime are missed
alike. Every group of results was left out of the fit that predicted it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from math import erf, exp, log, sqrt
from pathlib import Path

from autoshard.layout.strategy import Strategy
from autoshard.spec.cluster import Cluster

FILE = Path(__file__).parent / "intervals.json"
UNMEASURED = "unmeasured"
BEYOND = 1.5
"""How much wider an interval is, in logarithms, for what no measured layout of its device has. A guess."""


@dataclass(frozen=True)
class Regime:
    """low, high: of log(measured / predicted) of step times, the middle 90 %. memory_spread: standard deviation of the
    logarithm of memory. results, groups: how many they come from."""

    low: float
    high: float
    memory_spread: float
    results: int
    groups: int


@lru_cache(maxsize=1)
def regimes() -> dict[str, Regime]:
    """By name: device families with results of their own, and `unmeasured`."""
    content = json.loads(FILE.read_text(encoding="utf-8"))["regimes"]
    return {name: Regime(**values) for name, values in content.items()}


def regime_of(cluster: Cluster) -> str:
    """The family of a device with results under this kind of software, or `unmeasured`."""
    family = cluster.instance.split(".")[0].removesuffix("n")
    return family if family in regimes() else UNMEASURED


def unlike_measured(strategy: Strategy) -> tuple[str, ...]:
    """What of a layout no measured result on Trainium has."""
    s = strategy
    found = (("cp", s.cp), ("ep", s.ep), ("vpp", s.num_virtual_stages))
    beyond = [f"{name}={value}" for name, value in found if value > 1]
    if s.recompute == "full":
        beyond.append("recompute=full")
    if s.tp not in (8, 32):
        beyond.append(f"tp={s.tp}")
    return tuple(beyond)


def step_time_factors(cluster: Cluster, strategy: Strategy) -> tuple[float, float]:
    """(low, high): a step takes between so many times its prediction with 90 % probability."""
    regime = regimes()[regime_of(cluster)]
    wider = BEYOND if regime_of(cluster) != UNMEASURED and unlike_measured(strategy) else 1.0
    return exp(wider * regime.low), exp(wider * regime.high)


def fits_probability(memory_bytes: float, capacity_bytes: float, cluster: Cluster) -> float:
    """Of the fullest rank, to stay within its memory."""
    spread = regimes()[regime_of(cluster)].memory_spread
    return 0.5 * (1 + erf(log(capacity_bytes / memory_bytes) / spread / sqrt(2)))


def interval_note(cluster: Cluster, strategy: Strategy) -> str:
    """Where the interval comes from, in one sentence."""
    name = regime_of(cluster)
    regime = regimes()[name]
    if name == UNMEASURED:
        return (
            f"no published result on {cluster.instance} was there to compare with: the 90 % interval is that of "
            f"software stacks that were left out of the fit on {regime.groups} others"
        )
    source = f"{regime.results} published results on {name}, {regime.groups} layouts each left out in turn"
    if beyond := unlike_measured(strategy):
        return f"the 90 % interval is {BEYOND:g} times that of {source}: none of them has {', '.join(beyond)}"
    return f"the 90 % interval comes from {source}"
