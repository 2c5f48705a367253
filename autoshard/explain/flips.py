"""Where the choice of a layout flips when one quantity changes: found by searching again, not by guessing.

Between two values of a quantity the layouts known so far are priced (`estimate`) and the flip is bisected; then the
whole search runs on both sides of it. A layout that it finds joins the known ones and the bisection is done again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

from autoshard.cost.estimate import Estimate, estimate
from autoshard.errors import AutoshardError
from autoshard.explain.quantities import Quantity
from autoshard.layout.strategy import Strategy
from autoshard.search import Candidate, Pins, search
from autoshard.search.rules import Problem

FINE = 1.01
"""A flip is known to this factor."""
SEARCHES = 6
"""Steps to narrow a flip down, at most: each searches once, the last one twice."""
EQUAL = 1e-9
"""Step times closer than this are one."""


@dataclass(frozen=True)
class Flip:
    """Of one quantity in one direction. factor: times what it is now; the choice holds up to `holds`.

    to: what wins from there; None: nothing is legal or fits any more, and `refusal` says why.
    """

    factor: float
    holds: float
    to: Candidate | None
    refusal: str = ""


def same_layout(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies are one layout to a reader: where stages are cut is not looked at."""
    return _key(one) == _key(other)


def _key(strategy: Strategy) -> tuple[object, ...]:
    s = strategy
    sets = frozenset(s.recompute)
    degrees = (s.tp, s.pp, s.dp, s.cp, s.ep, s.num_virtual_stages, s.microbatch_size)
    return (*degrees, s.schedule, sets, s.attention_kernel, s.context_parallel)


def winner(problem: Problem, pins: Pins) -> tuple[Candidate | None, str]:
    """(the fastest layout that fits, "") or (None, why there is none)."""
    try:
        model, training, cluster, backend = problem
        return search(model, training, cluster, pins, backend, top=0).best, ""
    except AutoshardError as error:
        return None, str(error)


@dataclass
class _Known:
    """Layouts priced along one quantity: those that count as the choice, and those that do not."""

    problem: Problem
    quantity: Quantity
    ours: list[Strategy]
    theirs: list[Strategy]

    def is_ours(self, best: Candidate | None) -> bool:
        return best is not None and same_layout(best.strategy, self.ours[0])

    def add(self, best: Candidate | None) -> bool:
        """A layout that the search found; whether it was not known before."""
        if best is None or best.strategy in (*self.ours, *self.theirs):
            return False
        (self.ours if self.is_ours(best) else self.theirs).append(best.strategy)
        return True

    def ours_win(self, factor: float) -> bool:
        problem = self.quantity.scaled(self.problem, factor)
        ours = min((one.step_time_s for one in _fitting(problem, self.ours)), default=None)
        theirs = min((one.step_time_s for one in _fitting(problem, self.theirs)), default=None)
        return ours is not None and (theirs is None or ours <= theirs * (1 + EQUAL))

    def bisected(self, holds: float, flipped: float) -> tuple[float, float]:
        """The same two factors, no more than FINE apart."""
        while _apart(holds, flipped) > FINE:
            middle = sqrt(holds * flipped)
            if self.ours_win(middle):
                holds = middle
            else:
                flipped = middle
        return holds, flipped


def _apart(one: float, other: float) -> float:
    return max(one / other, other / one)


def _fitting(problem: Problem, strategies: list[Strategy]) -> Iterator[Estimate]:
    for one in strategies:
        expected = estimate(problem.model, problem.training, problem.cluster, one)
        if expected.fits:
            yield expected


def flip(problem: Problem, pins: Pins, chosen: Strategy, quantity: Quantity, furthest: float) -> Flip | None:
    """The first flip between now and `furthest` times as much; None where the choice at both ends is the same."""
    if quantity.whole:
        return _whole_flip(problem, pins, chosen, quantity, furthest)
    far, refusal = winner(quantity.scaled(problem, furthest), pins)
    if far is not None and same_layout(far.strategy, chosen):
        return None
    known = _Known(problem, quantity, [chosen], [far.strategy] if far is not None else [])
    holds, found = 1.0, Flip(furthest, 1.0, far, refusal)
    halve = False
    for _ in range(SEARCHES):
        if _apart(holds, found.factor) <= FINE:
            break
        before, after = known.bisected(holds, found.factor)
        expected = (before, after) if before != holds else (after,)
        for probe in (sqrt(holds * found.factor),) if halve else expected:
            best, refusal = winner(quantity.scaled(problem, probe), pins)
            is_new = known.add(best)
            if not known.is_ours(best):
                found = Flip(probe, holds, best, refusal)
                break
            holds = probe
        # Where the layouts known so far did not say where to look, look in the middle.
        halve = not halve and (found.factor == before or (found.factor != after and not is_new))
    return replace(found, holds=holds)


def _whole_flip(problem: Problem, pins: Pins, chosen: Strategy, quantity: Quantity, furthest: float) -> Flip | None:
    """By doubling or halving; of a whole number only its halves that are whole."""
    step, factor = (2.0, 1.0) if furthest > 1 else (0.5, 1.0)
    while factor != furthest:
        holds, factor = factor, factor * step
        if quantity.now * factor != int(quantity.now * factor):
            return None
        best, refusal = winner(quantity.scaled(problem, factor), pins)
        if best is None or not same_layout(best.strategy, chosen):
            return Flip(factor, holds, best, refusal)
    return None
