"""Why not another layout: its best completion against the chosen one, or why it has none."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.explanation.doubt import doubt, pairs
from autoshard.explanation.flips import same_layout
from autoshard.files.codec import to_json
from autoshard.planner.search import search
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate, Pins
from autoshard.spec.cluster import Cluster

MORE_MEMORY = (1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
"""Times the memory of a device, tried in this order where a layout does not fit."""


@dataclass(frozen=True)
class Why:
    """asked: in the user's words. chosen: of the plan.

    best: the fastest completion that fits; where none fits the one that is nearest to it; None where none is legal or
    none of that much memory is. refusal: why none fits or is legal, in one sentence, with the nearest miss.
    """

    asked: str
    chosen: Candidate
    best: Candidate | None
    refusal: str

    @property
    def is_the_choice(self) -> bool:
        return self.best is not None and not self.refusal and same_layout(self.best.strategy, self.chosen.strategy)

    def to_dict(self, cluster: Cluster) -> dict[str, Any]:
        """Plain JSON values. differences: what `best` takes more than the chosen one, term by term."""
        best = self.best
        found: dict[str, Any] = {
            "asked": self.asked,
            "refusal": self.refusal or None,
            "chosen": _candidate_to_dict(self.chosen),
            "best": None if best is None else _candidate_to_dict(best),
        }
        if best is not None:
            time = pairs(self.chosen.estimate.time_terms, best.estimate.time_terms)
            memory = pairs(self.chosen.estimate.fullest.terms, best.estimate.fullest.terms)
            found["time_differences_s"] = {pair.name: pair.difference for pair in time}
            found["memory_differences_bytes"] = {pair.name: pair.difference for pair in memory}
            found["doubt"] = asdict(doubt(cluster, self.chosen, best))
        return found


def _candidate_to_dict(one: Candidate) -> dict[str, Any]:
    return {"strategy": to_json(one.strategy), "estimate": to_json(one.estimate)}


def why(plan: Plan, asked: str, pins: Pins) -> Why:
    """Searches every completion of `pins` for one that fits as surely as the plan had to. What the plan's own pins fix
    does not hold here."""
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    chosen = Candidate(plan.strategy, plan.estimate)
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    try:
        best = search(*problem[:3], pins, plan.backend, top=0, fit_probability=sure).best
        return Why(asked, chosen, best, "")
    except NoLayoutFits as error:
        return Why(asked, chosen, _nearest(problem, pins), str(error))
    except AutoshardError as error:
        return Why(asked, chosen, None, str(error))


def _nearest(problem: Problem, pins: Pins) -> Candidate | None:
    """The fastest completion on devices with just enough memory, with its estimate on the devices that there are."""
    model, training, cluster, backend = problem
    for factor in MORE_MEMORY:
        larger = replace(cluster.device, memory_bytes=cluster.device.memory_bytes * factor)
        try:
            found = search(model, training, replace(cluster, device=larger), pins, backend, top=0).best
        except AutoshardError:
            continue
        return Candidate(found.strategy, estimate(model, training, cluster, found.strategy))
    return None
