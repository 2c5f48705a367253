"""What this version's cost model expects of a plan, whatever the plan itself says."""

from __future__ import annotations

import math
from dataclasses import replace

from autoshard.cost.estimate import estimate
from autoshard.cost.values import Estimate
from autoshard.layout.plan import Plan, operator_choices
from autoshard.layout.rounding import rounded
from autoshard.layout.sharding import differing
from autoshard.search.result import Candidate
from autoshard.units import format_bytes, format_seconds

SAME = 1e-5
"""Relative: numbers have six digits, and machines may round the last one differently."""


def priced(plan: Plan) -> Plan:
    """The plan with the estimates of this version, of its layout and of its runners-up."""
    problem = plan.model, plan.training, plan.cluster
    others = differing(plan.operators, operator_choices(plan.model, plan.cluster, plan.strategy))
    return replace(
        plan,
        estimate=rounded(estimate(*problem, plan.strategy, operators=others)),
        runners_up=tuple(Candidate(one.strategy, rounded(estimate(*problem, one.strategy))) for one in plan.runners_up),
    )


def other_prices(plan: Plan) -> str | None:
    """What of a plan's estimates is not as this version computes it, in words; None where all is."""
    now = priced(plan)
    if not _same(plan.estimate, now.estimate):
        return (
            f"its prices are another cost model's: {_words(plan.estimate)}, where this version expects "
            f"{_words(now.estimate)}"
        )
    pairs = zip(plan.runners_up, now.runners_up, strict=True)
    if all(_same(one.estimate, other.estimate) for one, other in pairs):
        return None
    return "the prices of its runners-up are another cost model's"


def _words(one: Estimate) -> str:
    return f"{format_seconds(one.step_time_s)} a step and {format_bytes(one.fullest.total_bytes)}"


def _same(one: Estimate, other: Estimate) -> bool:
    return _names(one) == _names(other) and all(
        math.isclose(a, b, rel_tol=SAME) for a, b in zip(_numbers(one), _numbers(other), strict=True)
    )


def _names(one: Estimate) -> list[str]:
    return [term.name for terms in (one.time_terms, *(rank.terms for rank in one.memory)) for term in terms]


def _numbers(one: Estimate) -> list[float]:
    terms = [term.value for terms in (one.time_terms, *(rank.terms for rank in one.memory)) for term in terms]
    interval = (one.step_time_low_s, one.step_time_high_s, one.fits_probability)
    return [*terms, *interval, one.model_flops_per_step]
