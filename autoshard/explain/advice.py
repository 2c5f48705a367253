"""How sure a plan is: where its intervals come from, which layouts cannot be told apart and what to make of those."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.cost.interval import interval_note
from autoshard.explain.beside import doubt
from autoshard.explain.names import layout_name
from autoshard.explain.page import percent, span
from autoshard.layout.plan import Plan, operator_choices
from autoshard.layout.strategy import Strategy
from autoshard.search.result import Candidate
from autoshard.units import format_seconds

EVEN = 2 / 3
"""Of two layouts that cannot be told apart the simpler one is preferred where the other is faster less probably."""
SURE_TO_FIT = 0.9
"""A layout that fits less probably is worth a word on room."""


def advice(plan: Plan) -> tuple[str, ...]:
    """Sentences."""
    low, high = plan.estimate.step_time_low_s, plan.estimate.step_time_high_s
    seconds, fits = span(low, high, format_seconds), percent(plan.estimate.fits_probability)
    first = f"with 90 % probability a step takes {seconds}; the plan fits into memory with {fits}"
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
        even = [one for one in equals if doubt(plan.cluster, chosen, one).first_is_faster < EVEN]
        simplest = min((chosen, *even), key=lambda one: simplicity(one.strategy))
        if simplest is chosen:
            yield "none of them is about as fast and simpler"
        else:
            slower = f"{100 * (simplest.estimate.step_time_s / chosen.estimate.step_time_s - 1):.1f} %"
            yield (
                f"the simplest that is about as fast is {layout_name(simplest.strategy)}, predicted {slower} slower: "
                f"prefer it unless a measurement says otherwise (autoshard plan {flags(simplest.strategy)})"
            )
    yield from _room(chosen, equals)


def _room(chosen: Candidate, equals: list[Candidate]) -> Iterator[str]:
    if chosen.estimate.fits_probability >= SURE_TO_FIT:
        return
    roomiest = max(equals, key=lambda one: one.estimate.fits_probability, default=chosen)
    sure = f"{100 * chosen.estimate.fits_probability:.0f} %"
    if roomiest.estimate.fits_probability > chosen.estimate.fits_probability:
        other = f"{100 * min(roomiest.estimate.fits_probability, 0.99):.0f} %"
        yield (
            f"memory: the chosen one fits with {sure} only; of the toss-ups {layout_name(roomiest.strategy)} has most "
            f"room and fits with {other}"
        )
    else:
        yield f"memory: the chosen one fits with {sure} only, and no toss-up has more room"


def simplicity(strategy: Strategy) -> tuple[int, ...]:
    """Less is simpler: axes in use, virtual stages, kinds of recompute, degrees of pp, cp, ep and tp."""
    s = strategy
    axes = sum(degree > 1 for degree in (s.tp, s.pp, s.cp, s.ep, s.num_virtual_stages))
    return (axes, len(set(s.recompute)), s.pp * s.num_virtual_stages, s.cp, s.ep, s.tp, s.microbatch_size)


def flags(strategy: Strategy) -> str:
    """'--tp 8 --pp 8 --dp 8 --vpp 1 --micro-batch 1': what pins the layout on the command line."""
    s = strategy
    pinned = [
        ("tp", s.tp),
        ("pp", s.pp),
        ("dp", s.dp),
        ("vpp", s.num_virtual_stages),
        ("micro-batch", s.microbatch_size),
    ]
    pinned += [(name, degree) for name, degree in (("cp", s.cp), ("ep", s.ep)) if degree > 1]
    text = " ".join(f"--{name} {value}" for name, value in pinned)
    return f"{text} --recompute {s.recompute[0]}" if len(set(s.recompute)) == 1 else text
