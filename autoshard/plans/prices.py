"""The estimates of this version's cost model for a plan, whatever the plan itself says."""

from __future__ import annotations

import math
from dataclasses import replace

from autoshard.cost.estimate import estimate
from autoshard.cost.values import Estimate
from autoshard.layout.sharding import OperatorChoices, differing
from autoshard.plans.plan import Plan, operator_choices
from autoshard.plans.rounding import rounded
from autoshard.plans.search_result import Candidate
from autoshard.units import format_bytes, format_seconds

MOST_PASSES = 100_000
"""Microbatches through virtual stages, of all layouts: some schedules are counted pass by pass, 6 us each."""
MOST_OPERATORS = 20_000
"""Operators of all layouts; a plan with five runners-up has some 200."""
SAME = 1e-5
"""Relative: numbers have six digits, and machines may round the last one differently."""
NOTHING = 1e-12
"""Seconds, bytes or a probability: what sums may be off by where they are nothing."""


def priced(plan: Plan) -> Plan:
    """The plan with the estimates of this version, of its layout and of its runners-up."""
    problem = plan.model, plan.training, plan.cluster
    return replace(
        plan,
        estimate=rounded(unrounded(plan)),
        runners_up=tuple(Candidate(one.strategy, rounded(estimate(*problem, one.strategy))) for one in plan.runners_up),
    )


def unrounded(plan: Plan) -> Estimate:
    """The estimate of this version, with all digits, of a plan's layout."""
    return estimate(plan.model, plan.training, plan.cluster, plan.strategy, operators=other_operators(plan))


def other_operators(plan: Plan) -> OperatorChoices:
    """The choices of a plan's operators that differ from Megatron's."""
    return differing(plan.operators, operator_choices(plan.model, plan.training, plan.cluster, plan.strategy))


def is_cheap(plan: Plan) -> bool:
    """Whether `priced` takes milliseconds: a file may hold a plan of any size."""
    strategies = (plan.strategy, *(one.strategy for one in plan.runners_up))
    batch = plan.training.global_batch_size
    passes = sum(one.num_microbatches(batch) * len(one.stage_layers) for one in strategies)
    return passes <= MOST_PASSES and len(strategies) * len(plan.operators) <= MOST_OPERATORS


def other_prices(plan: Plan) -> str | None:
    """Words on the first of a plan's estimates that this version computes otherwise.

    None where all are the same, and where to compute them again is not cheap.
    """
    if not is_cheap(plan):
        return None
    now = priced(plan)
    if not _same(plan.estimate, now.estimate):
        old, new = _words(plan.estimate), _words(now.estimate)
        seen = f": {old}, where this version expects {new}" if old != new else " in details"
        return f"its prices are not this cost model's{seen}"
    pairs = zip(plan.runners_up, now.runners_up, strict=True)
    if all(_same(one.estimate, other.estimate) for one, other in pairs):
        return None
    return "the prices of its runners-up are not this cost model's"


def _words(one: Estimate) -> str:
    return f"{format_seconds(one.step_time_s)} a step and {format_bytes(one.fullest.total_bytes)}"


def _same(one: Estimate, other: Estimate) -> bool:
    ours, theirs = _numbers(one), _numbers(other)
    return ours.keys() == theirs.keys() and all(
        math.isclose(value, theirs[name], rel_tol=SAME, abs_tol=NOTHING) for name, value in ours.items()
    )


def _numbers(one: Estimate) -> dict[tuple[int, str], float]:
    """By place, the step or a pipeline rank, and name. The rest of an estimate follows from these and the inputs."""
    places = (one.time_terms, *(rank.terms for rank in one.memory))
    terms = {(place, term.name): term.value for place, found in enumerate(places) for term in found}
    names = ("step_time_low_s", "step_time_high_s", "fits_probability", "model_flops_per_step")
    return {**terms, **{(-1, name): getattr(one, name) for name in names}}
