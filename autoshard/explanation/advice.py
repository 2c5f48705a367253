"""How sure a plan is: where its intervals come from, which layouts cannot be told apart and what to make of those."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.cost.interval import interval_note
from autoshard.explanation.doubt import doubt
from autoshard.explanation.page import percent, span
from autoshard.plans.names import short_name
from autoshard.plans.plan import Plan, operator_choices
from autoshard.plans.search_result import Candidate
from autoshard.units import format_seconds

SURE_TO_FIT = 0.9
"""A layout that fits less probably is worth a word on room."""


def advice(plan: Plan) -> tuple[str, ...]:
    """Sentences."""
    low, high = plan.estimate.step_time_low_s, plan.estimate.step_time_high_s
    seconds, fits = span(low, high, format_seconds), percent(plan.estimate.fits_probability)
    first = f"with 90 % probability a step takes {seconds}; the plan fits into memory with {fits} probability"
    others = _on_others(plan) if plan.search is not None and plan.runners_up else ()
    return (first, interval_note(plan.cluster, plan.strategy), *others, *_on_operators(plan))


def _on_operators(plan: Plan) -> Iterator[str]:
    if plan.operators != operator_choices(plan.model, plan.cluster, plan.strategy):
        yield "operators are the solver's; other layouts on this page are priced with Megatron's"


def _on_others(plan: Plan) -> Iterator[str]:
    chosen = Candidate(plan.strategy, plan.estimate)
    equals = [one for one in plan.runners_up if doubt(plan.cluster, chosen, one).toss_up]
    if not equals:
        yield "no runner-up is a toss-up: the 90 % interval of how much slower each is lies above zero"
    else:
        count = "all" if len(equals) == len(plan.runners_up) else f"{len(equals)} of {len(plan.runners_up)}"
        yield (
            f"toss-ups: {count} runners-up; the difference is within the model's own error, so either may be faster. "
            "Measure them where it matters"
        )
    yield from _by_stage(plan)
    yield from _room(chosen, equals)


def _by_stage(plan: Plan) -> Iterator[str]:
    """What the search leaves open of layouts that cannot win."""
    alike = [one for one in plan.runners_up if one.strategy.uniform_recompute is not None and one.strategy.pp > 1]
    if plan.strategy.uniform_recompute is None and alike:
        yield (
            "runners-up that recompute alike in all stages may come closer with a set for each stage, as --why finds "
            "it: the search looks for that only where it may win"
        )


def _room(chosen: Candidate, equals: list[Candidate]) -> Iterator[str]:
    if chosen.estimate.fits_probability >= SURE_TO_FIT:
        return
    roomiest = max(equals, key=lambda one: one.estimate.fits_probability, default=chosen)
    sure = f"{100 * chosen.estimate.fits_probability:.0f} %"
    if roomiest.estimate.fits_probability > chosen.estimate.fits_probability:
        other = f"{100 * min(roomiest.estimate.fits_probability, 0.99):.0f} %"
        yield (
            f"memory: the chosen one fits with {sure} probability only; of the toss-ups "
            f"{short_name(roomiest.strategy)} has most room and fits with {other} probability"
        )
    else:
        yield f"memory: the chosen one fits with {sure} probability only, and no toss-up has more room"
