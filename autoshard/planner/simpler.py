"""Simpler layouts that need not be solved to find the fastest one, but may win a toss-up with it."""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.planner.grid.refine import Promise, fastest_of
from autoshard.planner.ranking import Timed
from autoshard.planner.toss_ups import GIVEN_AWAY, choices, choices_of


def simpler_ones(passed: Iterable[Promise], fastest_s: float, taken: Timed, limit_bytes: float) -> list[Timed]:
    """The layouts of some promises that `simplest_of_equals` may take instead of the taken one.

    Which promises are solved on the way to the fastest layout follows from bounds; what is taken should not. fastest_s:
    seconds of the fastest layout. limit_bytes: memory of a device that they may use. Layouts with several kinds of
    blocks are left out: to solve one takes too long.
    """
    may_take_s = fastest_s * (1 + GIVEN_AWAY)
    found = list[Timed]()
    fewest, fewest_s = choices(taken.strategy), taken.step_time_s
    for promise in sorted(passed, key=lambda one: (_choices(one), one.at_least_s)):
        if _choices(promise) > fewest:
            break
        below_s = min(may_take_s, fewest_s) if _choices(promise) == fewest else may_take_s
        if promise.at_least_s >= below_s or promise.whole.has_kinds:
            continue
        layout = fastest_of(promise, limit_bytes, below_s)
        if layout is not None:
            found.append(layout)
            fewest, fewest_s = min((fewest, fewest_s), (choices(layout.strategy), layout.step_time_s))
    return found


def _choices(promise: Promise) -> int:
    """The least that `choose.choices` says of any layout of a promise: another cut, or sets by stage, are one choice
    more."""
    return choices_of(promise.layout) + 1
