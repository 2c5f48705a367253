"""Finds where the choice of a layout flips when one quantity changes. It searches again; it does not extrapolate.

Between two values of a quantity it prices the layouts known so far (`estimate`) and bisects where a search that knew
these alone would take another one; then it searches on both sides of that. A layout that the search finds joins the
known ones, and the bisection is done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import NamedTuple

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.fit_probability import Level
from autoshard.cost.interval import FIT_PROBABILITY, fits_probability
from autoshard.errors import AutoshardError
from autoshard.explanation.quantities import CLOSE, Quantity
from autoshard.layout.strategy import Strategy
from autoshard.planner.cached_search import Searches, known_bytes, known_step_time_s
from autoshard.planner.choice import PassedOver, passed_over, taken_of
from autoshard.planner.promising import drafts_of
from autoshard.planner.ranking import Timed
from autoshard.plans.search_result import Candidate, Pins

FINE = 1.01
"""The flip is bisected until its two sides are no more than this factor apart."""
SEARCHES = 6
"""The most searches for one flip; three are enough where the layouts known so far say where it is."""
MORE_SEARCHES = 4
"""The most searches after these: they halve what is left until its two sides are CLOSE."""
EQUAL = 1e-9
"""Step times that differ by a smaller share count as equal."""


@dataclass(frozen=True)
class Flip:
    """A flip of the choice, for one quantity in one direction.

    factor: the value at the flip over today's. holds: the choice holds up to this factor. to: the layout that wins from
    there on; None where nothing is legal or fits any more, and `refusal` says why.
    """

    factor: float
    holds: float
    to: Candidate | None
    refusal: str = ""


class Winner(NamedTuple):
    """The result of a search. best: None where nothing fits or is legal, and `refusal` says why."""

    best: Candidate | None
    refusal: str


def same_layout(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies look the same to a reader: where stages are cut does not count."""
    return _key(one) == _key(other)


def _key(strategy: Strategy) -> tuple[object, ...]:
    s = strategy
    sets = frozenset(s.recompute)
    degrees = (s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.dp_replicate, s.num_virtual_stages, s.microbatch_size)
    return (*degrees, s.zero, s.schedule, sets, s.attention_kernel, s.context_parallel, s.axis_order)


def winner(
    searches: Searches,
    problem: Problem,
    pins: Pins,
    sure: float = FIT_PROBABILITY,
    among: frozenset[Draft] | None = None,
    sparing: bool = True,
) -> Winner:
    """The layout that the search takes for a problem. sure: probability with which it must fit. among: the layouts to
    look at, by default all. sparing: as of Searches.best."""
    try:
        best = searches.best(problem, pins, sure, among, sparing)
        searches.remember(problem, best.strategy)
        return Winner(best, "")
    except AutoshardError as error:
        return Winner(None, str(error))


class Question(NamedTuple):
    """One question to the search: the problem, its pins, the probability with which a layout must fit, and the layouts
    to look at, None for all: where these are many, all at the far end, and between only those that are promising
    there or today."""

    problem: Problem
    pins: Pins
    sure: float = FIT_PROBABILITY
    among: frozenset[Draft] | None = None


@dataclass
class _Known:
    """Layouts that are priced along one quantity. asked: the question. passed: what a search passes over. sure:
    probability with which a layout must fit. ours: those that count as the chosen layout. theirs: the others.
    given_away: by how many layouts are known, how many times as long as theirs ours take today, at least 1; None where
    a search that knew these alone would take ours today. problems: by factor."""

    asked: Question
    passed: PassedOver
    quantity: Quantity
    sure: float
    ours: list[Strategy]
    theirs: list[Strategy]
    given_away: dict[int, float | None] = field(default_factory=dict)
    problems: dict[float, Problem] = field(default_factory=dict)

    def problem(self, factor: float) -> Problem:
        """The problem with so many times the quantity."""
        if factor not in self.problems:
            self.problems[factor] = self.quantity.scaled(self.asked.problem, factor)
        return self.problems[factor]

    @property
    def count(self) -> int:
        """How many layouts are known."""
        return len(self.ours) + len(self.theirs)

    @property
    def kinds(self) -> frozenset[Draft]:
        """These, whatever their cuts and recompute sets are."""
        return frozenset(drafts_of((*self.ours, *self.theirs)))

    def is_ours(self, best: Candidate | None) -> bool:
        return best is not None and same_layout(best.strategy, self.ours[0])

    def add(self, best: Candidate | None) -> bool:
        """Adds a layout that the search found; returns whether it is new."""
        if best is None or best.strategy in (*self.ours, *self.theirs):
            return False
        (self.ours if self.is_ours(best) else self.theirs).append(best.strategy)
        return True

    def add_faster(self, found: Iterable[Strategy], factor: float) -> None:
        """Adds the layouts that win over ours at this factor."""
        ours_s = self.fastest_s(factor, self.ours)
        for one in found:
            if not same_layout(one, self.ours[0]) and one not in self.theirs:
                seconds = self.fastest_s(factor, [one])
                if seconds is not None and (ours_s is None or seconds < ours_s):
                    self.theirs.append(one)

    def ours_win(self, factor: float) -> bool:
        """Whether the chosen layout still wins at this factor: a search that knew these layouts alone would take it.
        Where it would not do so today, a lead that others have over it today is allowed there too."""
        if self.count not in self.given_away:
            self.given_away[self.count] = None if self.ours_are_taken(1.0) else max(1.0, self.ratio(1.0) or 1.0)
        given_away = self.given_away[self.count]
        if given_away is None:
            return self.ours_are_taken(factor)
        ratio = self.ratio(factor)
        return ratio is not None and ratio <= given_away * (1 + EQUAL)

    def ours_are_taken(self, factor: float) -> bool:
        """Whether a search that knew these layouts alone would take ours."""
        timed = ((self.step_time_s(factor, one), one) for one in (*self.ours, *self.theirs))
        ranked = sorted(
            (Timed(seconds, one) for seconds, one in timed if seconds is not None), key=lambda one: one.step_time_s
        )
        if not ranked:
            return False
        problem = self.problem(factor)
        level = Level(self.sure, problem.cluster.device.memory_bytes)
        return same_layout(taken_of(problem, self.passed, level, ranked), self.ours[0])

    def ratio(self, factor: float) -> float | None:
        """Step time of ours over theirs at this factor; None where ours do not fit, 0 where theirs do not."""
        ours, theirs = (self.fastest_s(factor, known) for known in (self.ours, self.theirs))
        if ours is None:
            return None
        return ours / theirs if theirs is not None else 0.0

    def fastest_s(self, factor: float, known: list[Strategy]) -> float | None:
        """The shortest step time, seconds, of the known layouts that fit with at least probability `sure`; None where
        none does."""
        each = (self.step_time_s(factor, one) for one in known)
        return min((seconds for seconds in each if seconds is not None), default=None)

    def step_time_s(self, factor: float, strategy: Strategy) -> float | None:
        """The step time of one layout, seconds; None where it does not fit with at least probability `sure`."""
        problem = self.problem(factor)
        cluster, needed_bytes = problem.cluster, known_bytes(problem, strategy)
        capacity_bytes = cluster.device.memory_bytes
        if needed_bytes > capacity_bytes or fits_probability(needed_bytes, capacity_bytes, cluster) < self.sure:
            return None
        return known_step_time_s(problem, strategy)

    def bisected(self, holds: float, flipped: float) -> tuple[float, float]:
        """The factors (holds, flipped) moved together until they are no more than FINE apart."""
        while _apart(holds, flipped) > FINE:
            middle = sqrt(holds * flipped)
            if self.ours_win(middle):
                holds = middle
            else:
                flipped = middle
        return holds, flipped


def _apart(one: float, other: float) -> float:
    return max(one / other, other / one)


def flip(searches: Searches, asked: Question, chosen: Strategy, quantity: Quantity, furthest: float) -> Flip | None:
    """The first flip between now and `furthest` times the quantity; None where the choice at both ends is the same."""
    if quantity.whole:
        return _whole_flip(searches, asked, chosen, quantity, furthest)
    problem, pins, sure, among = asked
    far, refusal = winner(searches, quantity.scaled(problem, furthest), pins, sure, among, sparing=False)
    if far is not None and same_layout(far.strategy, chosen):
        return None
    if among is None:
        among = _promising(searches, pins, problem, quantity.scaled(problem, furthest))
    capacity_bytes = problem.cluster.device.memory_bytes
    sure_now = min(sure, fits_probability(known_bytes(problem, chosen), capacity_bytes, problem.cluster))
    theirs = [far.strategy] if far is not None else []
    known = _Known(asked, passed_over(problem, pins), quantity, sure_now, [chosen], theirs)
    known.add_faster(searches.remembered(problem, pins), furthest)
    holds, nearest = 1.0, Flip(furthest, 1.0, far, refusal)
    halve, count, misses = False, 1, 0
    while count < SEARCHES + MORE_SEARCHES:
        guess = count < SEARCHES
        if _apart(holds, nearest.factor) <= (FINE if guess else CLOSE):
            break
        before, after = known.bisected(holds, nearest.factor)
        so_far, kinds = known.count, known.kinds
        expected = (before, after) if before != holds else (after,)
        for probe in (sqrt(holds * nearest.factor),) if halve or not guess else expected:
            best, refusal = winner(searches, known.problem(probe), pins, sure, among)
            is_new, count = known.add(best), count + 1
            known.add_faster(searches.remembered(problem, pins), probe)
            if not known.is_ours(best):
                nearest = Flip(probe, holds, best, refusal)
                break
            holds = probe
        # Where the layouts known so far did not say where to look, and nothing was learned from that, or it is the
        # second time, look in the middle, until something is found there. Every bit of room lets another one fit.
        sooner = nearest.factor == before
        missed = sooner or (nearest.factor != after and not is_new)
        misses = misses + missed if known.kinds == kinds else 0
        nothing_new = known.count == so_far
        again = not nothing_new and misses < 2 and not (sooner and quantity.makes_room)
        halve = nothing_new if halve else missed and not again
    return replace(nearest, holds=holds)


def _promising(searches: Searches, pins: Pins, *problems: Problem) -> frozenset[Draft] | None:
    """The layouts that are promising for one of the problems, None for all."""
    each = [searches.promising(problem, pins) for problem in problems]
    return None if None in each else frozenset[Draft]().union(*filter(None, each))


def _whole_flip(
    searches: Searches, asked: Question, chosen: Strategy, quantity: Quantity, furthest: float
) -> Flip | None:
    """The first flip of a whole number (such as the batch), looked for by doubling or halving; None where there is
    none."""
    holds = 1.0
    for factor in quantity.steps(furthest):
        best, refusal = winner(searches, quantity.scaled(asked.problem, factor), *asked[1:])
        if best is None or not same_layout(best.strategy, chosen):
            return Flip(factor, holds, best, refusal)
        holds = factor
    return None
