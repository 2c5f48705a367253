"""A plan's trace ends when its step does, whatever the schedule, the chunks, the stage of ZeRO and the axes."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from autoshard.backends.rules import Problem
from autoshard.cost.estimate import Estimate, estimate
from autoshard.explanation.trace import predicted_events, seconds_behind
from autoshard.layout.strategy import Strategy
from autoshard.models import load_model
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.whole import Priced
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.search_result import Pins
from autoshard.plans.timeline import planned_timeline
from autoshard.schedules import SCHEDULES
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

PROBLEMS = {
    "nxd": ("llama3-8b", "trn1.32xlarge", 1, 32, "mixed_precision", "nxd", "none"),
    "nxd, experts": ("mixtral-8x7b", "trn1.32xlarge", 1, 32, "bf16_sr", "nxd", "core_attention"),
    "torch": ("llama3-8b", "trn2.48xlarge", 1, 64, "fp32", "torch", "full"),
    "torch, experts": ("mixtral-8x7b", "trn1.32xlarge", 1, 32, "mixed_precision", "torch", "none"),
}
SIX_DIGITS = 5.1e-6
"""A plan's numbers are rounded to so much."""


def priced(name: str) -> tuple[Problem, list[Priced]]:
    model, instance, nodes, batch, precision, backend, recompute = PROBLEMS[name]
    training = TrainingSpec(2048, batch, load_precision(precision))
    problem = Problem(load_model(model), training, load_cluster(instance, nodes), backend)
    table = Table(problem, (recompute,))
    for mesh in legal_layouts(problem, Pins(), Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    return problem, [*table.price()]


def check(problem: Problem, strategy: Strategy, cost: Estimate) -> Plan:
    plan = make_plan(*problem[:3], problem.backend, strategy, cost)
    events = predicted_events(plan)
    timed = [event for event in events if event["ph"] != "M"]
    assert all(before["ts"] <= after["ts"] for before, after in pairwise(timed))
    assert events[len(events) - len(timed) :] == timed  # titles come first
    end_s = max(event["ts"] + event["dur"] for event in timed if event["ph"] == "X") / 1e6
    assert end_s == pytest.approx(plan.estimate.step_time_s, rel=SIX_DIGITS, abs=5e-6)
    exact = replace(plan, estimate=cost)  # without the plan's rounding
    end_s = planned_timeline(exact)[1].total_s + sum(seconds_behind(exact).values())
    assert end_s == pytest.approx(cost.step_time_s, rel=1e-9)
    assert sum(term.value for term in cost.time_terms) == pytest.approx(cost.step_time_s, rel=1e-12)
    return plan


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_trace_ends_with_the_step(name: str) -> None:
    """Two plans of every schedule with every stage of ZeRO that it goes with."""
    problem, chunks = priced(name)
    choose, seen = random.Random(0), set()
    wanted = [one for one in SCHEDULES if SCHEDULES[one].nxd or problem.backend != "nxd"]
    stages = (1,) if problem.backend == "nxd" else range(4)
    places = [(schedule, zero) for schedule in wanted for zero in stages]
    for schedule, zero in places:
        rows = [
            (one, row)
            for one in chunks
            if one.whole.family.schedule == schedule
            for row in range(len(one.draft))
            if one.whole.drafts.drafts[one.draft[row]].zero == zero
        ]
        for one, row in choose.sample(rows, min(2, len(rows))):
            strategy = one.strategy(row)
            cost = estimate(*problem[:3], strategy)
            check(problem, strategy, cost)
            seen.add((schedule, zero))
    apart = {(schedule, zero) for schedule, zero in places if SCHEDULES[schedule].weights_apart and zero > 1}
    assert seen == {*places} - apart


def test_the_step_of_zero_3_counts_what_travels_once() -> None:
    """A plan whose gathers do not all hide: its trace was longer than its step by what waits in the pipeline."""
    problem, chunks = priced("torch")
    one, row = next(
        (one, row)
        for one in chunks
        for row in range(len(one.draft))
        if (draft := one.whole.drafts.drafts[one.draft[row]]).zero == 3 and draft.dp > 8 and draft.pp == 2
    )
    strategy = one.strategy(row)
    cost = estimate(*problem[:3], strategy)
    plan = check(problem, strategy, cost)
    terms = {term.name: term.value for term in cost.time_terms}
    behind = seconds_behind(plan)
    assert 0 <= behind["parameter all-gather"] < 0.9 * terms["parameter all-gather"]
