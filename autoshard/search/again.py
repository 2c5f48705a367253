"""Many searches of problems that are alike: each answer is `search`'s, what they share is done once.

Rules and room read nothing of what links and devices can do, and prices nothing of how much memory there is. What is
dropped is not counted: where nothing fits, `search` is asked and says why.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from autoshard.cost.estimate import estimate
from autoshard.search.candidates import check_pins
from autoshard.search.headroom import FIT_PROBABILITY, levels
from autoshard.search.layouts import legal_layouts
from autoshard.search.result import Candidate, Pins
from autoshard.search.rules import Draft, Problem
from autoshard.search.search import Clock, PricedLayouts, choose, search
from autoshard.search.sets import recompute_sets, sets_by_stage
from autoshard.search.tally import Tally

KEPT = 4
"""Problems whose prices are kept: those of a cluster take some MB."""


class Searches:
    """Mutable: remembers what it did."""

    def __init__(self) -> None:
        self._drafts: dict[tuple[object, ...], list[tuple[float, list[Draft]]]] = {}
        self._priced: dict[tuple[Problem, Pins], PricedLayouts] = {}

    def best(self, problem: Problem, pins: Pins, fit_probability: float = FIT_PROBABILITY) -> Candidate:
        """As `search`, which says what is raised."""
        check_pins(problem, pins)
        cluster = problem.cluster
        choice = choose(self.layouts(problem, pins), pins, levels(cluster, fit_probability), Clock(inf))
        if choice is None:
            model, training, _, backend = problem
            return search(model, training, cluster, pins, backend, top=0, fit_probability=fit_probability).best
        strategy = choice.fastest[choice.place].strategy
        return Candidate(strategy, estimate(problem.model, problem.training, cluster, strategy))

    def layouts(self, problem: Problem, pins: Pins) -> PricedLayouts:
        """Every one that is legal and fits, and some that do not."""
        device = problem.cluster.device
        any_memory = replace(device, memory_bytes=1 + device.reserved_memory_bytes)
        key = (problem._replace(cluster=replace(problem.cluster, device=any_memory)), pins)
        known = self._priced.get(key)
        if known is not None and known.problem.cluster.device.memory_bytes >= device.memory_bytes:
            return known
        self._priced[key] = found = self._price(problem, pins)
        while len(self._priced) > KEPT:
            del self._priced[next(iter(self._priced))]
        return found

    def _price(self, problem: Problem, pins: Pins) -> PricedLayouts:
        from autoshard.search.grid.table import Table

        table = Table(problem, recompute_sets(problem, pins), sets_by_stage(pins))
        capacity = problem.cluster.device.memory_bytes
        for state_bytes, drafts in self._legal(problem, pins):
            for draft in drafts if state_bytes <= capacity else ():
                if table.has_room(draft):
                    table.add(draft)
        return PricedLayouts(problem, [*table.price()], inf)

    def _legal(self, problem: Problem, pins: Pins) -> list[tuple[float, list[Draft]]]:
        model, training, cluster, backend = problem
        degrees = (cluster.nodes, cluster.devices_per_node, cluster.devices_per_chip, cluster.lnc)
        rules = (cluster.instance, cluster.layout_rules, cluster.device.reserved_memory_bytes, *degrees)
        key = (model, training, backend, rules, pins)
        if key not in self._drafts:
            self._drafts[key] = [(one.state_bytes, one.drafts) for one in legal_layouts(problem, pins, Tally())]
        return self._drafts[key]
