"""Plans in several precisions: which are asked for, what each would give, and whether fewer bits are worth it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoshard.errors import AutoshardError, NoLayoutFits, NoneFound
from autoshard.planner.answer import Answer, answer, fits_but, unsureness
from autoshard.planner.inputs import precision_names
from autoshard.planner.request import PlanRequest
from autoshard.planner.toss_ups import GIVEN_AWAY
from autoshard.spec.training import load_precision
from autoshard.units import format_seconds

WIDE = "mixed_precision"
"""What products in fewer bits are held against: everything else is alike."""


def is_compared(request: PlanRequest) -> bool:
    """Whether the answer compares precisions, for which several searches are made."""
    names = precision_names(request)
    return len(names) > 1 or load_precision(names[0]).products is not None


def best_precision(request: PlanRequest) -> Answer:
    """The answer in the precision with the fastest step, with a note of what each would give; of those that cannot be
    told apart, the one that was named first. Those that fit less surely than another one are passed over.

    A precision with quantised products that is asked for alone is the answer; the note says what mixed_precision would
    give. Raises AutoshardError, what the search of the first precision raised where none has an answer.
    """
    if not is_compared(request):
        return answer(request)
    names = precision_names(request)
    if len(names) > 1:
        return _fastest({name: _tried(request, name) for name in names}, request)
    (name,) = names
    found, wide = answer(request), _tried(request, WIDE)
    return replace(found, notes=(*found.notes, _worth(name, found, wide)))


def _tried(request: PlanRequest, name: str) -> Answer | AutoshardError:
    try:
        kept = request.keep_bf16 if load_precision(name).products is not None else None
        return answer(replace(request, precision=name, keep_bf16=kept))
    except (NoLayoutFits, NoneFound) as error:
        return error


def _step_s(found: Answer) -> float:
    return found.result.best.estimate.step_time_s


def _fastest(tried: Mapping[str, Answer | AutoshardError], request: PlanRequest) -> Answer:
    answers = {name: one for name, one in tried.items() if isinstance(one, Answer)}
    if not answers:
        raise next(one for one in tried.values() if not isinstance(one, Answer))
    places = {name: unsureness(one, request) for name, one in answers.items()}
    surest = {name: one for name, one in answers.items() if places[name] == min(places.values())}
    least_s = min(map(_step_s, surest.values()))
    chosen = next(name for name, one in surest.items() if _step_s(one) <= least_s * (1 + GIVEN_AWAY))
    best = answers[chosen]
    others = ", ".join(
        f"{name} {_said(one)}{fits_but(one, request, best) if isinstance(one, Answer) else ''}"
        for name, one in tried.items()
        if name != chosen
    )
    why = "" if _step_s(best) == least_s else f"; within {GIVEN_AWAY:.0%} the one named first is taken"
    note = f"precision {chosen}: {_said(best)} a step; {others}{why}"
    return replace(best, notes=(*best.notes, note))


def _said(found: Answer | AutoshardError) -> str:
    if isinstance(found, Answer):
        return format_seconds(_step_s(found))
    return "fits nowhere" if isinstance(found, NoLayoutFits) else "was not found to fit"


def _worth(name: str, found: Answer, wide: Answer | AutoshardError) -> str:
    if not isinstance(wide, Answer):
        none = "no layout fits" if isinstance(wide, NoLayoutFits) else "none that fits was found"
        return f"precision {name}: {_said(found)} a step; with {WIDE} {none}"
    if _step_s(found) >= (1 - GIVEN_AWAY) * _step_s(wide):
        return f"precision {name} is not worth it here: {_said(found)} a step, with {WIDE} {_said(wide)}"
    return f"precision {name}: {_said(found)} a step; with {WIDE} the fastest layout takes {_said(wide)}"
