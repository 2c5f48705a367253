"""The states of ranks that a process keeps: of which problems they may serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.backends.rules import Problem
from autoshard.cost.local_shape import local_shape, strategy_mesh
from autoshard.explanation.quantities import Quantity, quantities
from autoshard.models.registry import load_model
from autoshard.planner.axis_orders import at_any_speed, links_of
from autoshard.planner.grid.ranks import RankState
from autoshard.planner.grid.sharding_bounds import LeastTable
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

SERVED = ("memory", "peak", "batch")
"""Quantities that what a rank holds, sends and does behind the last microbatch does not depend on."""


def problem_8b() -> Problem:
    training = TrainingSpec(8192, 64, load_precision("mixed_precision"))
    return Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 2), "torch")


def drafts_8b() -> list[Any]:
    return [one for mesh in legal_layouts(problem_8b(), Pins(), Tally()) for one in mesh.drafts][::701]


def is_served(quantity: Quantity) -> bool:
    return quantity.name.startswith(SERVED)


def states(table: Table) -> list[RankState]:
    """Of each of drafts_8b()."""
    for draft in drafts_8b():
        table.add(draft)
    found = {}
    for whole in table.wholes():
        of_drafts = zip(whole.drafts.drafts, whole.drafts.states, strict=True)
        found.update({draft: whole.states[place] for draft, place in of_drafts})
    return [found[draft] for draft in drafts_8b()]


@pytest.mark.parametrize(
    "quantity", [one for one in quantities(problem_8b()) if is_served(one)], ids=lambda one: one.name
)
def test_a_state_made_for_one_problem_is_that_of_another_one(quantity: Quantity) -> None:
    """Where it is kept for both; here it is made anew, each time."""
    problem, scaled = problem_8b(), quantity.scaled(problem_8b(), 2.0)
    for draft in drafts_8b():
        one, other = (
            RankState(of, strategy_mesh(of.model, of.cluster, draft), local_shape(draft), draft.zero)
            for of in (problem, scaled)
        )
        told = [(state.state, state.hop, state.after_s(3, 2, 3)) for state in (one, other)]
        assert told[0] == told[1]


@pytest.mark.parametrize("quantity", quantities(problem_8b()), ids=lambda one: one.name)
def test_states_are_made_once_where_they_serve(quantity: Quantity) -> None:
    problem, scaled = problem_8b(), quantity.scaled(problem_8b(), 2.0)
    mine, again, others = (states(Table(of, ("none",))) for of in (problem, problem, scaled))
    assert all(one is other for one, other in zip(mine, again, strict=True))
    assert all((one is other) == is_served(quantity) for one, other in zip(mine, others, strict=True))
    assert (links_of(problem.cluster) is links_of(scaled.cluster)) == (
        is_served(quantity) or quantity.name.startswith("sequence")
    )


def test_bounds_have_states_of_their_own() -> None:
    problem = problem_8b()
    least = LeastTable(problem, ("none",), False, {})
    assert all(type(one) is not RankState for one in states(least))
    assert all(type(one) is RankState for one in states(Table(problem, ("none",))))


def test_equal_links_stay_one_object_whatever_else_was_asked() -> None:
    """As long as somebody asks for them: what is known of links is found by the object."""
    cluster = problem_8b().cluster
    first = links_of(cluster)
    for nodes in range(1, 200):
        assert links_of(cluster) is first
        at_any_speed(load_cluster("trn1.32xlarge", nodes))
    more = replace(cluster, device=replace(cluster.device, memory_bytes=2 * cluster.device.memory_bytes))
    assert links_of(more) is first
