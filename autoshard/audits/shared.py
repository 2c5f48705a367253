"""Which pipeline ranks run the same program and hold more or fewer microbatches of it: one is run for all of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TypeVar

from autoshard.audits.expected import telling_microbatches
from autoshard.audits.roles import roles
from autoshard.audits.values import Role
from autoshard.plans.plan import Plan
from autoshard.schedules import SCHEDULES, rank_holds

WARM_UP = 3
"""Microbatches held by the rank that is run: that each but the first adds the same bytes is seen twice."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Run:
    """One program to run, of `role` in `plan`, for roles of the audited plan.

    roles: each with the number of microbatches that it holds beyond those that the program holds.
    """

    plan: Plan
    role: Role
    roles: tuple[tuple[Role, int], ...]


def alone(plan: Plan, role: Role) -> Run:
    """The role's program in its own place, for itself."""
    return Run(plan, role, ((role, 0),))


def runs(plan: Plan, wanted: tuple[Role, ...]) -> tuple[Run, ...]:
    """A run for each program of the wanted roles, the longest first.

    Where all blocks are of one kind and ranks have one chunk, stages between the first and the last one with the same
    number of blocks and the same recompute set do the same to each microbatch. An earlier one holds more of them. Such
    a stage is run near the end of the pipeline, in the place of the third-last rank, where it holds WARM_UP. What each
    further microbatch holds is measured there. `tests/validation/test_audit.py` runs such ranks in their own places.
    """
    alike: dict[tuple[int, str], list[Role]] = defaultdict(list)
    found = []
    for role in wanted:
        if _moves(plan, role.pipeline_rank):
            strategy, stage = plan.strategy, role.pipeline_rank
            alike[strategy.stage_layers[stage], strategy.recompute[stage]].append(role)
        else:
            found.append(alone(plan, role))
    place = plan.strategy.pp - WARM_UP
    for same in alike.values():
        if [role.pipeline_rank for role in same] == [place]:
            found.append(alone(plan, same[0]))
            continue
        moved = _moved(plan, same[0].pipeline_rank, place)
        held = [_held(plan, role.pipeline_rank) - _held(plan, place) for role in same]
        why = f"run in the place of stage {place}, and what each further microbatch keeps is added"
        said = [replace(role, reason=f"{role.reason}; {why}") for role in same]
        found.append(Run(moved, roles(moved, (place,))[0], tuple(zip(said, held, strict=True))))
    return tuple(sorted(found, key=lambda run: -telling_microbatches(run.plan, run.role.pipeline_rank)))


def _moves(plan: Plan, rank: int) -> bool:
    """Whether the rank's stage may be run in the place of the third-last rank."""
    strategy, schedule = plan.strategy, SCHEDULES[plan.strategy.schedule]
    one_chunk = strategy.num_virtual_stages == 1 and schedule.warm_up is not None and not schedule.weights_apart
    place = strategy.pp - WARM_UP
    return (
        one_chunk
        and len(plan.model.kinds) == 1
        and 0 < rank <= place
        and _held(plan, rank) >= _held(plan, place) >= WARM_UP
    )


def _held(plan: Plan, rank: int) -> int:
    """Microbatches that a rank holds at once."""
    strategy = plan.strategy
    schedule = SCHEDULES[strategy.schedule]
    return rank_holds(schedule, strategy.pp, plan.num_microbatches, strategy.num_virtual_stages)[rank].in_flight


def _moved(plan: Plan, stage: int, place: int) -> Plan:
    """The plan with two stages in each other's places."""
    strategy = plan.strategy
    layers, recompute = _swapped(strategy.stage_layers, stage, place), _swapped(strategy.recompute, stage, place)
    return replace(plan, strategy=replace(strategy, stage_layers=layers, recompute=recompute))


def _swapped(values: tuple[_T, ...], i: int, j: int) -> tuple[_T, ...]:
    found = [*values]
    found[i], found[j] = found[j], found[i]
    return tuple(found)
