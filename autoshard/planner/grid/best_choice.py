"""The fastest choice of what one layout leaves open: how its blocks are cut, or what each virtual stage recomputes.

A choice is a row of whole numbers. Choices are bounded; those that cannot be the fastest are discarded; the others are
simulated. Where all that may be the fastest are few, all are looked at, which proves the best one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array

SAME = 1e-12
"""Share of a step by which two step times are the same."""
GROWTH = 256
"""Times as many choices are simulated together as before them: rows of a simulation cost little."""
STEP, STEP_GROWTH = 64, 2
"""So many choices, those with the lowest bounds, are simulated for a step down, and so many times as many as before
them while none is faster. To look at all of them before each step takes twice as long and, of pipelines with 32 to 64
stages, leads as often to a slower cut as to a faster one."""

LAST_ROUNDS = 3
"""Rounds of a descent whose gains say what the next ones gain at most: nearly always each gains less than some round
shortly before."""


class Priced(Protocol):
    """Choices with bounds and step times. An array of choices is (choice, number); seconds are by choice."""

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        """Seconds that steps take at least; infinite where a choice does not fit in memory. below_s: of choices that
        take no less it need not be known whether they fit."""

    def simulated_s(self, choices: Array) -> Array:
        """Seconds of the steps of choices that fit in memory."""


class Choices(Priced, Protocol):
    """Everything that one layout leaves open. An array of choices is (choice, number); seconds are by choice.

    rounds: how often single numbers of a choice are changed, at most. turns: parts of such a round. lists_all: whether
    no choice fits in memory where none is there to begin with.
    """

    rounds: int
    turns: int
    lists_all: bool

    @property
    def at_least_s(self) -> float:
        """Seconds that no choice takes less than."""

    def starts(self) -> list[Array]:
        """Good choices to begin with, (number,) each; none if none of them fits in memory."""

    def neighbours(self, choice: Array, turn: int) -> Array:
        """Choices that differ a little from one, (choice, number)."""

    def all_below(self, limit_s: float) -> tuple[Array, bool] | None:
        """(choices, whether no other one takes less than limit_s); None where these are too many to look at."""

    def strategy(self, choice: Array) -> Strategy:
        """The layout with this choice."""


class Found(NamedTuple):
    """The fastest choice that was found. at_least_s: no choice takes less. strategy: None if none takes less than the
    limit; step_time_s is then infinite. effort: of cuts by paths, in
    that of usual layouts, beyond the first."""

    step_time_s: float
    at_least_s: float
    strategy: Strategy | None
    effort: int = 0


TimedChoice = tuple[float, Array]
"""(seconds of the step, choice)."""


def best_choice(choices: Choices, limit_s: float) -> Found:
    """The fastest choice that is found to take less than limit_s.

    From good choices, steps lead down by bounds. Where the best one could still be beaten, all choices that may are
    looked at; if these are too many, steps lead further down by simulation, unless the lowest bound that was found is
    above the limit: then so is all that is around it.
    """
    at_least_s = choices.at_least_s
    if at_least_s >= limit_s:
        return Found(inf, at_least_s, None)
    starts = choices.starts()
    if not starts:
        return Found(inf, inf if choices.lists_all else at_least_s, None)
    if _none_is_below(choices, limit_s):
        return Found(inf, limit_s, None)
    descents = (_descended(choices, start, lowest_bound, limit_s) for start in starts)
    bound_s, choice = min(descents, key=lambda timed: timed[0])
    best: TimedChoice = (float(choices.simulated_s(choice[None])[0]), choice)
    if best[0] > at_least_s * (1 + SAME):
        listed = choices.all_below(min(best[0], limit_s))
        if listed is not None:
            tried, are_all = listed
            best = fastest(choices, tried, best)
            at_least_s = min(best[0], limit_s) if are_all else at_least_s
        elif best[0] > bound_s * (1 + SAME) and bound_s < limit_s:
            best = _descended(choices, choice, partial(fastest, is_step=True))
    step_time_s, choice = best
    if step_time_s >= limit_s:
        return Found(inf, at_least_s, None)
    return Found(step_time_s, min(step_time_s, at_least_s), choices.strategy(choice))


def _none_is_below(choices: Choices, limit_s: float) -> bool:
    """Whether all choices that may take less than limit_s are few, and none does."""
    listed = choices.all_below(limit_s)
    if listed is None:
        return False
    tried, are_all = listed
    return are_all and not (len(tried) and (choices.bounds_s(tried, limit_s) < limit_s).any())


def fastest(choices: Priced, tried: Array, best: TimedChoice, is_step: bool = False) -> TimedChoice:
    """The fastest of some choices and of the best known one, which stays if none is faster. is_step: any faster one
    will do, as others come after it."""
    bounds_s = choices.bounds_s(tried, best[0]) if len(tried) else np.zeros(0)
    order = np.argsort(bounds_s, kind="stable")
    begin, at_once, growth = 0, 1, GROWTH  # the lowest bound is the best one nearly always
    if is_step:
        at_once, growth = STEP, STEP_GROWTH
    while len(places := order[begin : begin + at_once]):
        begin, at_once = begin + at_once, growth * at_once
        places = places[bounds_s[places] < best[0] * (1 - SAME)]
        if not len(places):
            break
        simulated_s = choices.simulated_s(tried[places])
        if simulated_s.min() < best[0] * (1 - SAME):
            equal = np.flatnonzero(simulated_s <= simulated_s.min() * (1 + SAME))
            first = equal[0]  # not the one that rounding favours
            best = float(simulated_s[first]), tried[places[first]]
            if is_step:
                break
    return best


def lowest_bound(choices: Priced, tried: Array, best: TimedChoice) -> TimedChoice:
    """The lowest bound of some choices and of the best known one, which stays if none is lower."""
    bounds_s = choices.bounds_s(tried, best[0])
    return (float(bounds_s.min()), tried[bounds_s.argmin()]) if bounds_s.min() < best[0] * (1 - SAME) else best


def _descended(
    choices: Choices,
    start: Array,
    better: Callable[[Choices, Array, TimedChoice], TimedChoice],
    limit_s: float = inf,
) -> TimedChoice:
    """From a choice to its best neighbour, while that helps. limit_s: nothing that takes as long is wanted: no more
    rounds follow where each gaining as much as the best of the last ones would not lead below it."""
    best = better(choices, start[None], (inf, start))
    gained_s: deque[float] = deque(maxlen=LAST_ROUNDS)
    for left in reversed(range(choices.rounds)):
        before_s = best[0]
        for turn in range(choices.turns):
            tried = choices.neighbours(best[1], turn)
            best = better(choices, tried, best) if len(tried) else best
        gained_s.append(before_s - best[0])
        if best[0] == before_s or is_far(best[0], gained_s, left, limit_s):
            break
    return best


def is_far(seconds: float, gained_s: Sequence[float], left: int, limit_s: float) -> bool:
    """Whether the rounds of a descent that are left would not lead below a limit, if each gained as much as the best of
    the last ones. gained_s: by round, of the LAST_ROUNDS last ones at most."""
    return len(gained_s) == LAST_ROUNDS and seconds - left * max(gained_s) >= limit_s
