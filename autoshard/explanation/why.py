"""Answers "why not this layout?": the best layout of the kind that was asked for, beside the chosen one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.explanation.answers import problem_of, under_rules_of
from autoshard.explanation.doubt import doubt, pairs
from autoshard.explanation.flips import same_layout
from autoshard.explanation.held_against import held_against
from autoshard.files.codec import to_json
from autoshard.layout.strategy import Strategy
from autoshard.planner.cached_search import Searches
from autoshard.planner.candidates import check_pins
from autoshard.planner.no_answer import NothingFits, NothingLegal
from autoshard.planner.obstacles import Obstacles, obstacles
from autoshard.planner.search import Searched, search_once
from autoshard.planner.toss_ups import GIVEN_AWAY
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate, Pins
from autoshard.spec.cluster import Cluster

MORE_MEMORY = (1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
"""Multiples of what the smallest matching layout needs, tried in this order: of some only a bound is known."""
_DEGREES = ("tp", "pp", "dp", "cp")


@dataclass(frozen=True)
class Why:
    """The answer to "why not ...?".

    asked: in the user's words. chosen: the plan's layout. best: the fastest matching layout that fits, the chosen one
    where that is the simplest of equals; where none fits, the one that is nearest to fitting; None where none is legal,
    or none fits into the most memory that is tried. refusal: one sentence on why none fits or is legal, with the
    nearest miss; '' where one fits. notes: sentences on what the planner holds against `best` beside its time, and on
    the rules that keep what was asked from the degrees of `chosen`.
    """

    asked: str
    chosen: Candidate
    best: Candidate | None
    refusal: str
    notes: tuple[str, ...] = ()

    @property
    def is_the_choice(self) -> bool:
        return self.best is not None and not self.refusal and same_layout(self.best.strategy, self.chosen.strategy)

    def to_dict(self, cluster: Cluster) -> dict[str, Any]:
        """The answer as JSON values. differences: what `best` has more than the chosen layout, term by term."""
        best = self.best
        values: dict[str, Any] = {
            "asked": self.asked,
            "refusal": self.refusal or None,
            "chosen": _candidate_to_dict(self.chosen),
            "best": None if best is None else _candidate_to_dict(best),
            "notes": list(self.notes),
        }
        if best is not None:
            time = pairs(self.chosen.estimate.time_terms, best.estimate.time_terms)
            memory = pairs(self.chosen.estimate.fullest.terms, best.estimate.fullest.terms)
            values["time_differences_s"] = {pair.name: pair.difference for pair in time}
            values["memory_differences_bytes"] = {pair.name: pair.difference for pair in memory}
            values["doubt"] = asdict(doubt(cluster, self.chosen, best))
        return values


def _candidate_to_dict(one: Candidate) -> dict[str, Any]:
    return {"strategy": to_json(one.strategy), "estimate": to_json(one.estimate)}


def why(plan: Plan, asked: str, pins: Pins) -> Why:
    """Searches all layouts that match `pins` for the fastest that fits as surely as the plan had to. Of the plan's own
    pins only the rules of its search hold here."""
    problem, pins = problem_of(plan), under_rules_of(plan, pins)
    chosen = Candidate(plan.strategy, plan.estimate)
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    try:
        found = search_once(problem, pins, top=0, fit_probability=sure)
        best = _fastest(problem, found)
        most_s = (1 + GIVEN_AWAY) * best.estimate.step_time_s
        if found.best.estimate.step_time_s <= most_s and same_layout(found.best.strategy, plan.strategy):
            best = found.best
        notes = tuple(one.sentence for one in held_against(problem, best.strategy))
        if not _has_degrees(best.strategy, plan.strategy) and (near := _near(problem, plan.strategy, pins)) is not None:
            notes += (f"with the degrees of the chosen layout it is not legal: {near.text}",)
        return Why(asked, chosen, best, "", notes)
    except NoLayoutFits as error:
        needed_bytes = error.needed_bytes if isinstance(error, NothingFits) else plan.cluster.device.memory_bytes
        return Why(asked, chosen, _nearest(problem, pins, needed_bytes), str(error))
    except NothingLegal as error:
        near = _near(problem, plan.strategy, pins)
        if near is None or near.text in error.reason:
            return Why(asked, chosen, None, str(error))
        more = "" if near.broken == error.obstacles.broken else f"; with other degrees: {error.reason}"
        return Why(asked, chosen, None, f"{error.what}: {near.text}{more}")
    except AutoshardError as error:
        return Why(asked, chosen, None, str(error))


def _fastest(problem: Problem, found: Searched) -> Candidate:
    if found.fastest is None or found.fastest == found.best.strategy:
        return found.best
    return Candidate(found.fastest, estimate(problem.model, problem.training, problem.cluster, found.fastest))


def _has_degrees(one: Strategy, other: Strategy) -> bool:
    """Whether two layouts have the same degrees of parallelism; experts are spread inside these."""
    return all(getattr(one, name) == getattr(other, name) for name in _DEGREES)


def _near(problem: Problem, chosen: Strategy, pins: Pins) -> Obstacles | None:
    """The rules against what is asked where the degrees are the chosen layout's; None where other degrees are asked,
    and where there are no such rules."""
    if any(getattr(pins, name) not in (None, getattr(chosen, name)) for name in _DEGREES):
        return None
    # cp is what these leave of the devices
    near = replace(pins, tp=chosen.tp, pp=chosen.pp, dp=chosen.dp)
    try:
        check_pins(problem, near)
    except AutoshardError as error:
        return Obstacles(1, str(error))
    found = obstacles(problem, near)
    return found if found.broken else None


def _nearest(problem: Problem, pins: Pins, needed_bytes: float) -> Candidate | None:
    """The matching layout on devices with just enough memory, estimated on the real devices; None where there is none.
    needed_bytes: what it needs at least."""
    model, training, cluster, _ = problem
    searches = Searches()
    for factor in MORE_MEMORY:
        larger = replace(cluster.device, memory_bytes=needed_bytes * factor)
        roomier = searches.find(problem._replace(cluster=replace(cluster, device=larger)), pins)
        if roomier is not None:
            return Candidate(roomier.strategy, estimate(model, training, cluster, roomier.strategy))
    return None
