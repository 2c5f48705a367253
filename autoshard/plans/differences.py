"""The loss of one layout against another, in words: the terms of the step that cost it."""

from __future__ import annotations

from autoshard.cost.values import Estimate
from autoshard.units import format_seconds

WORTH_NAMING = 0.1
"""Terms below this share of all that is lost are not named."""
EQUAL = 0.001
"""Step times closer than this are called equal."""


def term_differences(best: Estimate, other: Estimate) -> tuple[tuple[str, float], ...]:
    """(term, seconds more than in `best`), largest loss first, gains last; terms that do not differ are left out."""
    ours = {term.name: term.value for term in best.time_terms}
    theirs = {term.name: term.value for term in other.time_terms}
    names = [*theirs, *(name for name in ours if name not in theirs)]
    differences = [(name, theirs.get(name, 0.0) - ours.get(name, 0.0)) for name in names]
    moved = [(name, seconds) for name, seconds in differences if abs(seconds) > EQUAL * best.step_time_s / 10]
    return tuple(sorted(moved, key=lambda one: -one[1]))


def loses(best: Estimate, other: Estimate) -> str:
    """'+1.31 s pipeline bubble, +0.42 s recompute; saves 0.80 s tensor-parallel collectives'."""
    if not other.fits:
        return f"does not fit: {_over(other)}"
    differences = term_differences(best, other)
    lost = sum(seconds for _, seconds in differences if seconds > 0)
    worst = [one for one in differences if one[1] >= WORTH_NAMING * lost and one[1] > 0][:3]
    gains = [one for one in reversed(differences) if one[1] < 0 and -one[1] >= WORTH_NAMING * lost][:2]
    text = ", ".join(f"+{format_seconds(seconds)} {name}" for name, seconds in worst)
    if gains:
        saved = ", ".join(f"{format_seconds(-seconds)} {name}" for name, seconds in gains)
        text = f"{text}; saves {saved}" if text else f"saves {saved}"
    equal = other.step_time_s <= best.step_time_s * (1 + EQUAL)
    return text or ("every term is the same" if equal else "a little in every term")


def _over(estimate: Estimate) -> str:
    from autoshard.units import format_bytes

    return f"{format_bytes(estimate.fullest.total_bytes)} of {format_bytes(estimate.memory_capacity_bytes)}"
