"""How far a prediction may be off: the middle 90 % of what held-out measurements were missed by.

`intervals.json`, written by `autoshard calibrate --results` alone, holds it by regime, each with the file of results
that it is `from`: results of one regime are missed alike. Every group of results was left out of the fit that
predicted it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import erf, exp, log, log2, sqrt
from pathlib import Path
from typing import Any

from autoshard.cost.known import (
    DENSE,
    DEVICE,
    EXPERTS,
    MODEL,
    PRECISION,
    Measured,
    Width,
    kind_of_results,
    model_kind,
    never_measured,
    number_format,
    widened,
)
from autoshard.graph.recompute import FULL_RECOMPUTE
from autoshard.layout.strategy import Strategy
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.sdk import newest_measured, release_slowdown, release_spread
from autoshard.spec.training import TrainingSpec

FILE = Path(__file__).parent / "intervals.json"
UNMEASURED = "unmeasured"
UNMEASURED_KINDS = {DENSE: UNMEASURED, EXPERTS: "unmeasured, experts"}
"""By kind of model, the regime of software that was never measured."""
FIT_PROBABILITY = 0.9
"""How surely a layout must fit into memory, unless something else is said."""
BEYOND = 1.4
"""How much wider an interval is, in logarithms, for what no measured layout of its device has: with a feature of GPU
results left out of the fit, intervals of their stacks so much wider hold nine in ten of the results that have it, as
the mean of ten features (1.43 by `benchmarks.path_surprise`, "to cover")."""
LEAST_SHOWN = 0.0005
"""The least share that is not 0.0 % on a page."""
NINETY_PERCENT = 1.645
"""Half the width of the middle 90 % of a normal distribution, in standard deviations."""
_TRAINIUM = re.compile(r"^(trn\d+)[nu]$")

DEGREES = {"communication": ("tp", "cp", "ep"), "pipeline": ("pp",), "microbatch": ("microbatch_size",)}
CHANGES = (*DEGREES, "recompute", "kernel", "other")
"""What two layouts may differ in; dp follows from the others. No pair of results differs in cp or ep: they count as tp
does, a guess."""
KIND_WORDS = {DENSE: "dense models", EXPERTS: "mixtures of experts"}
CHOICE_WORDS = {"tp": "tp", "cp": "cp", "ep": "ep", "num_virtual_stages": "vpp", "microbatch_size": "microbatch"}
"""By field of a layout whose values results have or have not, what pages call it."""
OTHER_CHOICES = ("num_virtual_stages", "schedule", "sequence_parallel", "zero")


@dataclass(frozen=True)
class Regime:
    """How far results that were left out of a fit missed its predictions, on one family of devices and software.

    low, high: of log(measured / predicted) of step times, the middle 90 %. memory_spread: standard deviation of the
    logarithm of memory. results, groups: how many they come from. fitted: whether constants were fitted to them; else
    they were too few, and all but these are those of `unmeasured`. expected: log of the mean of measured / predicted.
    choices: by field of CHOICE_WORDS and `recompute`, the values that the results' layouts have.
    """

    low: float
    high: float
    memory_spread: float
    results: int
    groups: int
    fitted: bool = True
    expected: float = 0.0
    choices: Mapping[str, Sequence[int | str]] = field(default_factory=dict)


@lru_cache(maxsize=1)
def regimes() -> dict[str, Regime]:
    """By name: device families with results of their own, and those of `unmeasured` software, which are no surer than
    any of these."""
    known = {name: Regime(**values) for name, values in _content("regimes").items()}
    fitted = [one for name, one in known.items() if one.fitted and name not in UNMEASURED_KINDS.values()]
    for name in UNMEASURED_KINDS.values():
        every = (known[name], *fitted)
        known[name] = replace(known[name], low=min(one.low for one in every), high=max(one.high for one in every))
    like = known[UNMEASURED]
    return {
        name: regime if regime.fitted else replace(regime, low=like.low, high=like.high, expected=like.expected)
        for name, regime in known.items()
    }


@lru_cache(maxsize=1)
def measured() -> dict[str, Measured]:
    """The kinds of models and number formats with results, by instance type or family of instance types."""
    return {
        name: Measured(tuple(values["models"]), tuple(values["precisions"]))
        for name, values in _content("measured").items()
    }


@lru_cache(maxsize=1)
def unknown_widths() -> dict[str, Width]:
    """The width that each thing that was never measured adds to an interval, by its name in cost/known.py."""
    return {name: Width(**values) for name, values in _content("never_measured").items()}


def _content(section: str) -> dict[str, dict[str, Any]]:
    """The entries of one section of the file, without where they are from."""
    content = json.loads(FILE.read_text(encoding="utf-8"))[section]
    return {
        name: {key: value for key, value in values.items() if key != "from"}
        for name, values in content.items()
        if name != "from"
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
    family = _family(cluster)
    return family if family in regimes() else UNMEASURED


def base_regime(cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Regime:
    """The regime whose results a case is held against; what of it was never measured adds to that."""
    if _is_fitted(cluster):
        return regimes()[regime_of(cluster)]
    return regimes()[UNMEASURED_KINDS[kind_of_results(model_kind(model), unknown_of(cluster, model, training))]]


def _is_fitted(cluster: Cluster) -> bool:
    """Whether constants were fitted to results on such a device."""
    name = regime_of(cluster)
    return name != UNMEASURED and regimes()[name].fitted


def _family(cluster: Cluster) -> str:
    return _TRAINIUM.sub(r"\1", cluster.instance.split(".")[0])


def unknown_of(cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> tuple[str, ...]:
    """The things of `cost.known.UNKNOWN` that no published result has for such a case."""
    return never_measured(measured(), _family(cluster), model_kind(model), number_format(training.precision))


def unlike_measured(cluster: Cluster, strategy: Strategy) -> tuple[str, ...]:
    """The choices of a layout that no measured result on such a device has, such as "cp=2": none where the device was
    not measured at all, as that is said of the whole case.
    """
    if not _is_fitted(cluster):
        return ()
    known = regimes()[regime_of(cluster)].choices
    words = {name: f"{word}={getattr(strategy, name)}" for name, word in CHOICE_WORDS.items()}
    beyond = [words[name] for name in words if getattr(strategy, name) not in known[name]]
    if FULL_RECOMPUTE in strategy.recompute and FULL_RECOMPUTE not in known["recompute"]:
        beyond.append(f"recompute={FULL_RECOMPUTE}")
    return tuple(beyond)


def step_time_factors(
    cluster: Cluster, strategy: Strategy, unknown: Sequence[str] = (), base: Regime | None = None
) -> tuple[float, float]:
    """(low, high): a step takes between so many times its prediction with 90 % probability. unknown: what was never
    measured, see unknown_of. It and what is not known of the release add to what is not known of the layout, as
    independent errors do. base: the case's, see base_regime; None: that of dense models on the device."""
    regime = base or regimes()[regime_of(cluster)]
    wider = BEYOND if unlike_measured(cluster, strategy) else 1.0
    of_release = NINETY_PERCENT * release_spread(cluster.layout_rules, cluster.sdk)
    widths = [*(unknown_widths()[name] for name in unknown), Width(-of_release, of_release, 0, 0)]
    low, high = widened(wider * regime.low, wider * regime.high, widths)
    return exp(low), exp(high)


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


@lru_cache(maxsize=1)
def picks() -> dict[str, float]:
    """Log of how much more than other layouts the fastest by prediction was missed by, where all of its features were
    measured (measured_features) and where one was not (new_features); how many groups and features tell."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["picks"]
    return {name: value for name, value in content.items() if name != "from"}


def new_features(cluster: Cluster, choices: Sequence[str], model: ModelSpec, training: TrainingSpec) -> tuple[str, ...]:
    """Everything that a layout and its case have that no constant of the device was fitted to, in words. choices: those
    of the layout."""
    unknown = unknown_of(cluster, model, training)
    return (*choices, *(_unknown_words(one, cluster, model, training) for one in unknown))


def expected_factor(new: Sequence[str], base: Regime, picked: bool) -> float:
    """The step time to expect over the predicted one. new: see new_features. base: see base_regime. picked: whether the
    layout was taken for its prediction."""
    return exp(base.expected + picked * surprise(new))


def surprise(new: Sequence[str]) -> float:
    """Log of how much longer a pick takes than others with equal predictions, each new feature counted the same; two
    together surprised no less. new: see new_features."""
    known = picks()["measured_features"]
    return known + len(new) * (picks()["new_features"] - known)


def expected_note(new: Sequence[str], base: Regime, picked: bool) -> str:
    """The reason why the step time to expect differs from the predicted one, as the end of a sentence; empty where
    there is none. Arguments as of expected_factor."""
    reasons = []
    if of_software := exp(base.expected) - 1:
        than = "longer" if of_software > 0 else "less"
        reasons.append(f"software that was left out of the fit took {abs(of_software):.1%} {than} on average")
    if picked:
        known, each = exp(surprise(())) - 1, exp(surprise(("one",)) - surprise(())) - 1
        groups, lacking = f"in {picks()['groups']} groups of results", ", ".join(new)
        tells_new = new and each >= LEAST_SHOWN
        if known >= LEAST_SHOWN:
            more = f", and {each:.1%} more for each thing that the fit had not seen: no result has {lacking}"
            took = f"{groups} the fastest by prediction took {known:.1%} longer than others with equal predictions"
            reasons.append(took + (more if tells_new else ""))
        elif tells_new:
            reasons.append(
                f"no result has {lacking}; layouts picked with something that the fit had not seen took {each:.1%} "
                "longer than others with equal predictions, for each such thing"
            )
        elif not reasons:
            reasons.append(f"{groups} the fastest by prediction was no worse missed than others")
    return "; ".join(reasons)


def fits_probability(memory_bytes: float, capacity_bytes: float, cluster: Cluster) -> float:
    """The probability that a rank with a predicted memory of so many bytes stays within its capacity."""
    spread = regimes()[regime_of(cluster)].memory_spread
    return 0.5 * (1 + erf(log(capacity_bytes / memory_bytes) / spread / sqrt(2)))


def interval_note(cluster: Cluster, strategy: Strategy, model: ModelSpec, training: TrainingSpec) -> str:
    """The source of a layout's interval and what of the case was never measured, in one sentence."""
    name = regime_of(cluster)
    regime, unknown = regimes()[name], unknown_of(cluster, model, training)
    missing = ", ".join(_unknown_words(one, cluster, model, training) for one in unknown)
    if not _is_fitted(cluster):
        besides = f", {missing}" if missing else ""
        few = "" if name == UNMEASURED else f"; {name} has too few published results to fit to ({regime.results})"
        apart, kind = base_regime(cluster, model, training), kind_of_results(model_kind(model), unknown)
        return (
            f"never measured on this: the software{besides}{few}; the 90 % interval is that of published results of "
            f"{KIND_WORDS[kind]} ({apart.results:,} of {apart.groups} software stacks) that were predicted without "
            "such results"
        )
    source = f"{regime.results} published results on {name}, {regime.groups} layouts each left out in turn"
    wider = f"; never measured on this: {missing}, which makes it wider" if missing else ""
    if beyond := unlike_measured(cluster, strategy):
        return f"the 90 % interval is {BEYOND:g} times that of {source}: none of them has {', '.join(beyond)}{wider}"
    return f"the 90 % interval comes from {source}{wider}"


def release_note(cluster: Cluster) -> str | None:
    """The release of the SDK that the numbers are for, against the newest one with results, in one sentence; None where
    no releases were compared."""
    newest = newest_measured(cluster.layout_rules)
    if newest is None or cluster.sdk is None:
        return None
    ratio, spread = (of(cluster.layout_rules, cluster.sdk) for of in (release_slowdown, release_spread))
    width = f"give or take {exp(NINETY_PERCENT * spread) - 1:.0%}, which the interval includes"
    return f"Neuron SDK {cluster.sdk}: a step takes {ratio:.2f} times as long as under {newest}, {width}"


def _unknown_words(name: str, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> str:
    return {
        DEVICE: f"the device ({cluster.instance})",
        MODEL: KIND_WORDS[model_kind(model)],
        PRECISION: f"{training.precision.name} precision",
    }[name]
