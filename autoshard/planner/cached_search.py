"""Many searches of problems that are alike: each answer is `search`'s, what they share is done once. Or some layouts
alone are searched, which were promising for one of the problems.

Rules and room read nothing of what links and devices can do, and prices nothing of how much memory there is. What is
dropped is not counted: where nothing fits, `search` is asked and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.estimate import estimate, fullest_bytes, step_time_s
from autoshard.cost.fit_probability import Level, levels
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.layout.strategy import Strategy
from autoshard.planner.axis_orders import at_any_memory, at_any_speed
from autoshard.planner.candidates import check_pins
from autoshard.planner.choice import Choice, choose
from autoshard.planner.collector import uncollected
from autoshard.planner.layouts import MeshDrafts, by_way, legal_layouts
from autoshard.planner.priced import Clock, PricedLayouts, price_layouts
from autoshard.planner.promising import any_order, drafts_of, promising
from autoshard.planner.ranking import Timed
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.planner.toss_ups import GIVEN_AWAY
from autoshard.plans.search_result import Candidate, Pins


class Start(NamedTuple):
    """The layouts of a problem with which searches of similar ones begin. promising: to look at where it changes a
    little, None for all. found: those that searches of it found."""

    promising: frozenset[Draft] | None
    found: tuple[Strategy, ...]


class OutOfTime(Exception):
    """Raised where a search was not ended, or not begun, when the clock ran out."""


KEPT = 4
"""Problems whose prices are kept: those of a cluster take some MB."""


class Searches:
    """Searches that share their prices. Mutable: remembers what it did. clock: when it has run out, every search raises
    OutOfTime."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock(inf)
        self._legal: dict[tuple[object, ...], list[MeshDrafts]] = {}
        self._priced: dict[tuple[Problem, Pins, frozenset[Draft] | None], PricedLayouts] = {}
        self._found: dict[tuple[object, ...], dict[Strategy, None]] = {}
        self._searched: dict[tuple[object, ...], dict[Strategy, None]] = {}
        self._promising: dict[tuple[Problem, Pins], frozenset[Draft] | None] = {}

    @uncollected()
    def best(
        self,
        problem: Problem,
        pins: Pins,
        fit_probability: float = FIT_PROBABILITY,
        among: frozenset[Draft] | None = None,
        sparing: bool = True,
    ) -> Candidate:
        """The best layout, the same that `search` finds.

        fit_probability: from 0 to 1, how surely the layout is to fit into memory. among: the layouts to look at, in any
        order of their axes; where none of them fits, and by default, all. sparing: whether nothing is priced but what
        may be the best; not so where `promising` is asked next. Raises what `search` raises, and OutOfTime.
        """
        best = None if among is None else self.find(problem, pins, fit_probability, among)
        best = best or self.find(problem, pins, fit_probability, sparing=sparing)
        if best is None:
            model, training, cluster, backend = problem
            return search(model, training, cluster, pins, backend, top=0, fit_probability=fit_probability).best
        return best

    @uncollected()
    def find(
        self,
        problem: Problem,
        pins: Pins,
        fit_probability: float = FIT_PROBABILITY,
        among: frozenset[Draft] | None = None,
        sparing: bool = True,
    ) -> Candidate | None:
        """The best layout, as `best` has it; None where no layout fits. Raises AutoshardError where pins contradict
        each other, and OutOfTime."""
        choice = self._choice(problem, pins, fit_probability, among, sparing)
        return None if choice is None else _estimated(problem, choice.taken)

    @uncollected()
    def fastest(self, problem: Problem, pins: Pins, fit_probability: float = FIT_PROBABILITY) -> Candidate:
        """The fastest layout that fits, whatever `best` puts before its time. Raises what `best` raises."""
        choice = self._choice(problem, pins, fit_probability)
        return self.best(problem, pins, fit_probability) if choice is None else _estimated(problem, choice.fastest[0])

    def _choice(
        self,
        problem: Problem,
        pins: Pins,
        fit_probability: float,
        among: frozenset[Draft] | None = None,
        sparing: bool = True,
    ) -> Choice | None:
        check_pins(problem, pins)
        cluster = problem.cluster
        self._check_clock()
        wanted, behind = levels(cluster, fit_probability), 1 + GIVEN_AWAY  # what `simplest_of_equals` looks at
        priced, known = self.layouts(problem, pins, among, sparing), partial(self._known, problem, pins)
        choice = choose(priced, pins, wanted, self._clock, behind=behind, known=known)
        self._check_clock()  # what was chosen in a hurry may not be the best
        if choice is not None:
            found = self._searched.setdefault((pins, *_layouts_of(problem)), {})
            found.update(dict.fromkeys((choice.taken.strategy, choice.fastest[0].strategy)))
            self.remember(problem, choice.fastest[0].strategy)  # it may be passed over here and taken elsewhere
        return choice

    def _known(self, problem: Problem, pins: Pins, level: Level) -> list[Timed]:
        """Layouts that searches with the same pins took or found the fastest, those that fit, fastest first."""
        taken = self._searched.get((pins, *_layouts_of(problem)), {})
        fitting = [one for one in taken if known_bytes(problem, one) <= level.memory_bytes]
        return sorted((Timed(known_step_time_s(problem, one), one) for one in fitting), key=lambda one: one.step_time_s)

    def remember(self, problem: Problem, strategy: Strategy) -> None:
        """Keeps a layout that was found for a problem."""
        self._found.setdefault(_layouts_of(problem), {})[strategy] = None

    def remembered(self, problem: Problem, pins: Pins) -> list[Strategy]:
        """Layouts that were found for problems with the same legal layouts and are as the pins say."""
        fixed = pins.fixed.items()
        found = self._found.get(_layouts_of(problem), {})
        return [one for one in found if all(getattr(one, name) == value for name, value in fixed)]

    def promising(self, problem: Problem, pins: Pins) -> frozenset[Draft] | None:
        """The layouts to look at where the problem changes a little, those found so far among them; None for all."""
        if (problem, pins) not in self._promising:
            self._promising[problem, pins] = promising(self.layouts(problem, pins, sparing=False))
        found = self._promising[problem, pins]
        return None if found is None else found.union(drafts_of(self.remembered(problem, pins)))

    def start(self, problem: Problem, pins: Pins) -> Start:
        """The layouts that are known of a problem by now, and those to look at."""
        return Start(self.promising(problem, pins), tuple(self.remembered(problem, pins)))

    def begun(self, problem: Problem, pins: Pins, start: Start) -> Searches:
        """Searches that begin with what `start` knows of a problem and forget in the end what they found: their answers
        do not depend on what was asked before. Prices are shared."""
        fresh = Searches(self._clock)
        fresh._legal, fresh._priced = self._legal, self._priced
        fresh._found[_layouts_of(problem)] = dict.fromkeys(start.found)
        fresh._searched = {(pins, *_layouts_of(problem)): dict.fromkeys(start.found)}
        fresh._promising[problem, pins] = start.promising
        return fresh

    def layouts(
        self, problem: Problem, pins: Pins, among: frozenset[Draft] | None = None, sparing: bool = True
    ) -> PricedLayouts:
        """The prices of every legal layout, or of some alone, each as soon as it may matter; not sparing: and of some
        beside these."""
        device = problem.cluster.device
        any_memory = replace(device, memory_bytes=1 + device.reserved_memory_bytes)
        key = (problem._replace(cluster=replace(problem.cluster, device=any_memory)), pins, among)
        known = self._priced.get(key)
        if known is not None and not sparing and known.waiting is not None and known.waiting.sparing:
            known = None
        if known is not None and known.problem.cluster.device.memory_bytes >= device.memory_bytes:
            return known
        self._priced[key] = layouts = self._price(problem, pins, among, sparing)
        while len(self._priced) > KEPT:
            del self._priced[next(iter(self._priced))]
        return layouts

    def _price(self, problem: Problem, pins: Pins, among: frozenset[Draft] | None, sparing: bool) -> PricedLayouts:
        key = (pins, *_layouts_of(problem))
        if key not in self._legal:
            self._legal[key] = legal_layouts(problem, pins, Tally())
        legal = self._legal[key] if among is None else [*_only(self._legal[key], among)]
        return price_layouts(problem, pins, Tally(), self._clock, legal=legal, sparing=sparing)

    def _check_clock(self) -> None:
        if not self._clock.in_time():
            raise OutOfTime


def _estimated(problem: Problem, found: Timed) -> Candidate:
    return Candidate(found.strategy, estimate(problem.model, problem.training, problem.cluster, found.strategy))


def known_step_time_s(problem: Problem, strategy: Strategy) -> float:
    """Seconds of a step, computed once for all memories of a device."""
    return _known_seconds(problem._replace(cluster=at_any_memory(problem.cluster)), strategy)


def known_bytes(problem: Problem, strategy: Strategy) -> float:
    """Bytes on the fullest rank, computed once for all that links and devices can do."""
    return _known_needed_bytes(problem._replace(cluster=at_any_speed(problem.cluster)), strategy)


@lru_cache(maxsize=2048)
def _known_seconds(problem: Problem, strategy: Strategy) -> float:
    return step_time_s(problem.model, problem.training, problem.cluster, strategy)


@lru_cache(maxsize=2048)
def _known_needed_bytes(problem: Problem, strategy: Strategy) -> float:
    return fullest_bytes(problem.model, problem.training, problem.cluster, strategy)


def _layouts_of(problem: Problem) -> tuple[object, ...]:
    """All that the legal layouts of a problem follow from, but for pins."""
    model, training, cluster, backend = problem
    degrees = (cluster.nodes, cluster.devices_per_node, cluster.devices_per_chip, cluster.lnc)
    reserved_bytes = cluster.device.reserved_memory_bytes
    return (model, training, backend, cluster.instance, cluster.layout_rules, *degrees, reserved_bytes)


def _only(legal: Iterable[MeshDrafts], among: frozenset[Draft]) -> Iterator[MeshDrafts]:
    """The legal layouts that are among some."""
    schedules = {one.way: {*one.schedules} for one in by_way(among)}
    for one in legal:
        wanted = schedules.get(any_order(one.way), ())
        kept = [schedule for schedule in one.schedules if schedule in wanted]
        if kept:
            yield one._replace(schedules=kept)
