"""Simpler layouts that need not be solved to find the fastest one, but may win a toss-up with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoshard.planner.grid.promises import Promise
from autoshard.planner.grid.refine import fastest_of
from autoshard.planner.ranking import Timed, best_of_each_kind
from autoshard.planner.toss_ups import GIVEN_AWAY, choices, choices_of


def simpler_ones(passed: Iterable[Promise], known: Sequence[Timed], place: int, limit_bytes: float) -> list[Timed]:
    """The layouts of some promises that `simplest_of_equals` may take instead of the taken one.

    Which promises are solved on the way to the fastest layout follows from bounds; what is taken should not. Of those
    that are found, too, the fastest stands for its kind: one behind it is not taken, however simple it is. known: the
    fastest of each kind, fastest first. place: of the taken one. limit_bytes: memory of a device that they may use.
    Layouts with several kinds of blocks are left out: to solve one takes too long.
    """
    may_take_s = known[0].step_time_s * (1 + GIVEN_AWAY)
    found = list[Timed]()
    simplest = _simplicity(known[place])

    def below_s(promise: Promise) -> float:
        """Seconds below which a layout of this promise may be taken."""
        fewest, fewest_s = simplest
        if (number := _choices(promise)) > fewest:
            return 0.0
        return min(may_take_s, fewest_s) if number == fewest else may_take_s

    left = sorted(passed, key=lambda one: (_choices(one), one.at_least_s))
    left = [one for one in left if one.at_least_s < may_take_s and not one.whole.has_kinds]
    while promise := next((one for one in left if one.at_least_s < below_s(one)), None):
        left.remove(promise)
        layout = fastest_of(promise, limit_bytes, below_s(promise))
        if layout is not None:
            found.append(layout)
            every = sorted([*known, *found], key=lambda one: one.step_time_s)
            ranked = best_of_each_kind(every, len(every))
            simplest = min(_simplicity(one) for one in (known[place], *found) if one in ranked)
    return found


def _simplicity(one: Timed) -> tuple[int, float]:
    return choices(one.strategy), one.step_time_s


def _choices(promise: Promise) -> int:
    """The least that `toss_ups.choices` says of any layout of a promise: another cut, or sets by stage, are one choice
    more."""
    return choices_of(promise.layout) + 1
