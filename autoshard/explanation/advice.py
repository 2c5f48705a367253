"""Sentences on how sure a plan is: where its intervals come from, and which layouts the model cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.backends.problem import Problem
from autoshard.cost.interval import (
    Regime,
    base_regime,
    expected_factor,
    expected_note,
    interval_note,
    new_features,
    release_note,
)
from autoshard.explanation.doubt import doubt
from autoshard.explanation.own_constants import has_own_constants
from autoshard.explanation.page import span
from autoshard.planner.beaten_path import new_choices
from autoshard.plans.names import short_name
from autoshard.plans.plan import Plan, operator_choices
from autoshard.plans.search_result import Candidate
from autoshard.units import format_seconds, percent

SURE_TO_FIT = 0.9
"""Below this probability of fitting into memory, the page says which layouts have more room."""
SAME = 5e-4
"""A share below which two step times are said to be the same."""


def expected_step_time_s(plan: Plan) -> float:
    """The step time to expect. It is more than the predicted one where left-out results were on average, and where a
    search picked choices that no result has: the fastest of many predictions is more often too fast than too slow."""
    return plan.estimate.step_time_s * expected_factor(_new(plan), _base(plan), picked=plan.search is not None)


def _base(plan: Plan) -> Regime:
    return base_regime(plan.cluster, plan.model, plan.training)


def _new(plan: Plan) -> tuple[str, ...]:
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    return new_features(plan.cluster, new_choices(problem, plan.strategy), plan.model, plan.training)


def advice(plan: Plan) -> tuple[str, ...]:
    """Sentences on how sure the plan's numbers are, for the section "How sure" of its page."""
    low, high = plan.estimate.step_time_low_s, plan.estimate.step_time_high_s
    seconds, fits = span(low, high, format_seconds), percent(plan.estimate.fits_probability)
    first = f"with 90 % probability a step takes {seconds}; the plan fits into memory with {fits} probability"
    others = _on_others(plan) if plan.search is not None and plan.runners_up else ()
    expected_s = expected_step_time_s(plan)
    more = expected_s / plan.estimate.step_time_s - 1
    than = "as predicted" if abs(more) < SAME else f"{more:.1%} more than predicted"
    why = expected_note(_new(plan), _base(plan), picked=plan.search is not None)
    expected = f"expected step time: {format_seconds(expected_s)}, {than}{': ' if why else ''}{why}"
    release = release_note(plan.cluster)
    notes = (interval_note(plan.cluster, plan.strategy, plan.model, plan.training), *([release] if release else []))
    return (first, expected, *notes, *_on_constants(plan), *others, *_on_operators(plan))


def _on_constants(plan: Plan) -> Iterator[str]:
    if has_own_constants(plan):
        yield (
            "constants: this cluster's are not autoshard's own. The interval says how far those missed published "
            "results, not how far these miss; other instance types are not compared, because none has constants like "
            "these"
        )


def _on_operators(plan: Plan) -> Iterator[str]:
    if plan.operators != operator_choices(plan.model, plan.training, plan.cluster, plan.strategy):
        yield "the solver sharded this plan's operators; other layouts on this page are priced with Megatron's rule"


def _on_others(plan: Plan) -> Iterator[str]:
    chosen = Candidate(plan.strategy, plan.estimate)
    toss_ups = [other for other in plan.runners_up if doubt(plan.cluster, chosen, other).toss_up]
    if not toss_ups:
        yield "no runner-up is a toss-up: the 90 % interval of how much slower each is lies above zero"
    else:
        count = "all" if len(toss_ups) == len(plan.runners_up) else f"{len(toss_ups)} of {len(plan.runners_up)}"
        yield (
            f"toss-ups: {count} runners-up; the difference is within the model's own error, so either may be faster. "
            "Measure them where it matters"
        )
    yield from _by_stage(plan)
    yield from _room(chosen, toss_ups)


def _by_stage(plan: Plan) -> Iterator[str]:
    """A sentence on runners-up that were priced with one recompute set for all stages, where the plan itself has a set
    per stage. The search tries sets per stage only for layouts that may win with them."""
    strategies = [runner_up.strategy for runner_up in plan.runners_up]
    one_set = any(strategy.uniform_recompute is not None and strategy.pp > 1 for strategy in strategies)
    if plan.strategy.uniform_recompute is None and one_set:
        yield (
            "runners-up with one recompute set for all stages may come closer with a set per stage; the search tried "
            "those only where they could win, --why tries them for any layout"
        )


def _room(chosen: Candidate, toss_ups: list[Candidate]) -> Iterator[str]:
    if chosen.estimate.fits_probability >= SURE_TO_FIT:
        return
    roomiest = max(toss_ups, key=lambda one: one.estimate.fits_probability, default=chosen)
    sure = f"{100 * chosen.estimate.fits_probability:.0f} %"
    if roomiest.estimate.fits_probability > chosen.estimate.fits_probability:
        other = f"{100 * min(roomiest.estimate.fits_probability, 0.99):.0f} %"
        yield (
            f"memory: the chosen layout fits with only {sure} probability; of the toss-ups, "
            f"{short_name(roomiest.strategy)} has the most room and fits with {other} probability"
        )
    else:
        yield f"memory: the chosen layout fits with only {sure} probability, and no toss-up has more room"
