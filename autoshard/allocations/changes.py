"""Single changes of a plan that need less memory, and whether a run that was short of memory would have fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.backends.rules import Problem, divisors
from autoshard.layout.mesh import experts_objection, replicas_objection, tensor_ranks_apart
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.planner.score import score
from autoshard.planner.sets import recompute_sets
from autoshard.plans.names import changed_words
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Pins
from autoshard.schedules import usual_schedule


@dataclass(frozen=True)
class Change:
    """One choice made otherwise. words: which. saved_bytes: on the fullest rank, against the plan's rank that was
    short. step_time_s: predicted."""

    words: str
    saved_bytes: float
    step_time_s: float


def changes(plan: Plan, pipeline_rank: int) -> tuple[Change, ...]:
    """Every legal single change that saves memory, the fastest first. pipeline_rank: that was short of memory."""
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    before = plan.estimate.memory[pipeline_rank].total_bytes
    found = []
    for strategy in _variants(plan, problem):
        priced = score(problem, strategy)
        if priced.estimate is not None and not priced.broken:
            saved = before - priced.estimate.fullest.total_bytes
            if saved > 0:
                found.append(Change(changed_words(plan.strategy, strategy), saved, priced.estimate.step_time_s))
    return tuple(sorted(found, key=lambda one: one.step_time_s))


def _variants(plan: Plan, problem: Problem) -> Iterator[Strategy]:
    one = plan.strategy
    for name in recompute_sets(problem, Pins()):
        if name != one.uniform_recompute:
            yield replace(one, recompute=(name,))
    for size in range(1, one.microbatch_size):
        if one.microbatch_size % size == 0:
            yield replace(one, microbatch_size=size)
    for zero in range(one.zero + 1, 4):
        yield replace(one, zero=zero)
    for replicas in divisors(one.dp_replicate)[:-1]:
        yield replace(one, dp_replicate=replicas)
    blocks, vpp = sum(one.stage_layers), one.num_virtual_stages
    if vpp > 1:
        yield replace(
            one,
            num_virtual_stages=1,
            schedule=usual_schedule(1),
            stage_layers=even_stage_layers(blocks, one.pp),
            recompute=(_heaviest(one),),
        )
    for factor in (2, 4, 8):
        dp, pp = one.dp // factor, one.pp * factor
        tp, apart = one.tp * factor, tensor_ranks_apart(one.tp, one.etp)
        if one.dp % (factor * one.ep) == 0 and replicas_objection(one.dp_replicate, one.ep, dp, one.cp, apart) is None:
            if experts_objection(one.ep, dp, one.cp, tensor_ranks_apart(tp, one.etp)) is None:
                yield replace(one, tp=tp, dp=dp, sequence_parallel=one.sequence_parallel or one.tp == 1)
            if pp * vpp <= blocks:
                layers = even_stage_layers(blocks, pp * vpp)
                yield replace(one, pp=pp, dp=dp, stage_layers=layers, recompute=(_heaviest(one),))


def _heaviest(one: Strategy) -> str:
    """The recompute set of the stage that keeps least."""
    return max(one.recompute, key=lambda name: (name == "full", name.count("+") + (name != "none")))
