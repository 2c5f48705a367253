"""How far a prediction may be off: the middle 90 % of what held-out measurements were missed by.

`intervals.json`, written by `autoshard calibrate --results` alone, holds it by regime, each with the file of results
that it is `from`: results of one regime are missed alike. Every group of results was left out of the fit that
predicted it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import erf, exp, log, log2, sqrt
from pathlib import Path

from autoshard.graph.recompute import FULL_RECOMPUTE
from autoshard.layout.strategy import Strategy
from autoshard.spec.cluster import Cluster
from autoshard.spec.sdk import newest_measured, release_slowdown, release_spread

FILE = Path(__file__).parent / "intervals.json"
UNMEASURED = "unmeasured"
FIT_PROBABILITY = 0.9
"""How surely a layout must fit into memory, unless something else is said."""
BEYOND = 1.5
"""How much wider an interval is, in logarithms, for what no measured layout of its device has. A guess."""
NINETY_PERCENT = 1.645
"""Half the width of the middle 90 % of a normal distribution, in standard deviations."""
_TRAINIUM = re.compile(r"^(trn\d+)[nu]$")

DEGREES = {"communication": ("tp", "cp", "ep"), "pipeline": ("pp",), "microbatch": ("microbatch_size",)}
CHANGES = (*DEGREES, "recompute", "kernel", "other")
"""What two layouts may differ in; dp follows from the others. No pair of results differs in cp or ep: they count as tp
does, a guess."""
OTHER_CHOICES = ("num_virtual_stages", "schedule", "sequence_parallel", "zero")


@dataclass(frozen=True)
class Regime:
    """low, high: of log(measured / predicted) of step times, the middle 90 %. memory_spread: standard deviation of the
    logarithm of memory. results, groups: how many they come from. fitted: whether constants were fitted to them; else
    they were too few, and low and high are those of `unmeasured`."""

    low: float
    high: float
    memory_spread: float
    results: int
    groups: int
    fitted: bool = True


@lru_cache(maxsize=1)
def regimes() -> dict[str, Regime]:
    """By name: device families with results of their own, and `unmeasured`, which is no surer than any of them."""
    content = json.loads(FILE.read_text(encoding="utf-8"))["regimes"]
    known = {
        name: Regime(**{key: value for key, value in values.items() if key != "from"})
        for name, values in content.items()
    }
    low, high = min(regime.low for regime in known.values()), max(regime.high for regime in known.values())
    return {
        name: regime if regime.fitted and name != UNMEASURED else replace(regime, low=low, high=high)
        for name, regime in known.items()
    }


@lru_cache(maxsize=1)
def differences() -> dict[str, float]:
    """Squared half widths, of log(measured ratio / predicted ratio): `any` of every pair, and one for each change."""
    widths: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8"))["differences"]["squared_half_widths"]
    return widths


def regime_of(cluster: Cluster) -> str:
    """The family of a device with results under this kind of software, or `unmeasured`.

    More network (trn1n), or an UltraServer's links (trn2u), leave a device what it is.
    """
    family = _TRAINIUM.sub(r"\1", cluster.instance.split(".")[0])
    return family if family in regimes() else UNMEASURED


def unlike_measured(strategy: Strategy) -> tuple[str, ...]:
    """The choices of a layout that no measured result on Trainium has, such as "cp=2"."""
    s = strategy
    degrees = (("cp", s.cp), ("ep", s.ep), ("vpp", s.num_virtual_stages))
    beyond = [f"{name}={value}" for name, value in degrees if value > 1]
    if FULL_RECOMPUTE in s.recompute:
        beyond.append("recompute=full")
    if s.tp not in (8, 32):
        beyond.append(f"tp={s.tp}")
    return tuple(beyond)


def step_time_factors(cluster: Cluster, strategy: Strategy) -> tuple[float, float]:
    """(low, high): a step takes between so many times its prediction with 90 % probability. What is not known of the
    release adds to what is not known of the layout, as independent errors do."""
    regime = regimes()[regime_of(cluster)]
    measured = regime_of(cluster) != UNMEASURED and regime.fitted
    wider = BEYOND if measured and unlike_measured(strategy) else 1.0
    of_release = NINETY_PERCENT * release_spread(cluster.layout_rules, cluster.sdk)
    low, high = (sqrt((wider * end) ** 2 + of_release**2) for end in (regime.low, regime.high))
    return exp(-low), exp(high)


def changes(a: Strategy, b: Strategy) -> dict[str, float]:
    """How much two layouts differ, by name of CHANGES: doublings of degrees, and how many of the other choices."""
    changes = {
        name: sum(abs(log2(getattr(a, field) / getattr(b, field))) for field in fields)
        for name, fields in DEGREES.items()
    }
    changes["recompute"] = float(set(a.recompute) != set(b.recompute))
    changes["kernel"] = float(a.attention_kernel != b.attention_kernel)
    changes["other"] = float(sum(getattr(a, name) != getattr(b, name) for name in OTHER_CHOICES))
    return changes


def difference_factors(cluster: Cluster, a: Strategy, b: Strategy) -> tuple[float, float]:
    """(low, high): step time of b over step time of a is between so many times the predicted ratio, with 90 %
    probability, for two layouts of one model and batch on one cluster.

    What misses both alike (device, stack, model) cancels; so it is narrower than their own intervals, and never wider
    than if they were independent. From pairs of held-out results on GPUs: on Trainium no two layouts were published of
    one release of the software.
    """
    if a == b:
        return 1.0, 1.0
    known, change = differences(), changes(a, b)
    width = sqrt(known["any"] + sum(known[name] * change[name] for name in CHANGES))
    factors = [step_time_factors(cluster, strategy) for strategy in (a, b)]
    independent = sqrt(sum((log(high / low) / 2) ** 2 for low, high in factors))
    width = min(width, independent)
    return exp(-width), exp(width)


def toss_up(cluster: Cluster, a: Strategy, a_s: float, b: Strategy, b_s: float) -> bool:
    """Whether either of two layouts with predicted step times a_s and b_s may be the faster one."""
    low, high = difference_factors(cluster, a, b)
    return low <= a_s / b_s <= high


def fits_probability(memory_bytes: float, capacity_bytes: float, cluster: Cluster) -> float:
    """The probability that a rank with a predicted memory of so many bytes stays within its capacity."""
    spread = regimes()[regime_of(cluster)].memory_spread
    return 0.5 * (1 + erf(log(capacity_bytes / memory_bytes) / spread / sqrt(2)))


def interval_note(cluster: Cluster, strategy: Strategy) -> str:
    """The source of a layout's interval, in one sentence."""
    name = regime_of(cluster)
    regime = regimes()[name]
    if name == UNMEASURED or not regime.fitted:
        left_out = regimes()[UNMEASURED].groups
        known = (
            f"never measured on this: no published result on {cluster.instance} was there to compare with"
            if name == UNMEASURED
            else f"too few published results on {name} to fit to ({regime.results})"
        )
        return (
            f"{known}; the 90 % interval is that of software stacks that were left out of the fit on {left_out} others"
        )
    source = f"{regime.results} published results on {name}, {regime.groups} layouts each left out in turn"
    if beyond := unlike_measured(strategy):
        return f"the 90 % interval is {BEYOND:g} times that of {source}: none of them has {', '.join(beyond)}"
    return f"the 90 % interval comes from {source}"


def release_note(cluster: Cluster) -> str | None:
    """The release of the SDK that the numbers are for, against the newest one with results, in one sentence; None where
    no releases were compared."""
    newest = newest_measured(cluster.layout_rules)
    if newest is None or cluster.sdk is None:
        return None
    ratio, spread = (of(cluster.layout_rules, cluster.sdk) for of in (release_slowdown, release_spread))
    width = f"give or take {exp(NINETY_PERCENT * spread) - 1:.0%}, which the interval includes"
    return f"Neuron SDK {cluster.sdk}: a step takes {ratio:.2f} times as long as under {newest}, {width}"
