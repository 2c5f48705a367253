"""Which pipeline ranks run the same program and hold more or fewer microbatches of it: one is run for all of them, and
with few microbatches where each further one is known to hold the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from autoshard.audits.expected import telling_microbatches
from autoshard.audits.roles import roles
from autoshard.audits.values import Role
from autoshard.plans.plan import Plan
from autoshard.schedules import SCHEDULES, rank_holds

WARM_UP = 3
"""Microbatches held by the rank that is run: that each but the first adds the same bytes is seen twice."""
FEW = 2 * WARM_UP
"""Microbatches of the step that is run of a rank that holds more than so many."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Run:
    """One program to run, of `role` in `plan`, for roles of the audited plan.

    roles: each with the number of microbatches that it holds beyond those that the program holds. num_microbatches: of
    the step that is run; None: as many as tell all.
    """

    plan: Plan
    role: Role
    roles: tuple[tuple[Role, int], ...]
    num_microbatches: int | None = None

    @property
    def length(self) -> int:
        """Microbatches of the step that is run."""
        return self.num_microbatches or telling_microbatches(self.plan, self.role.pipeline_rank)


def alone(plan: Plan, role: Role) -> Run:
    """The role's program in its own place, for itself."""
    return Run(plan, role, ((role, 0),))


def runs(plan: Plan, wanted: tuple[Role, ...]) -> tuple[Run, ...]:
    """A run for each program of the wanted roles, the longest first.

    Where ranks have one chunk, one that holds more than FEW microbatches is run with FEW, and what each further one
    holds is measured there. Where all blocks are of one kind, too, stages between the first and the last one with the
    same number of blocks and the same recompute set do the same to each microbatch, and an earlier one holds more of
    them: such a stage is run near the end of the pipeline, in the place of the third-last rank, where it holds WARM_UP.
    `tests/validation/test_audit.py` runs such ranks in their own places, with all that they hold.
    """
    alike: dict[tuple[int, str], list[Role]] = defaultdict(list)
    found = []
    for role in wanted:
        if _moves(plan, role.pipeline_rank):
            strategy, stage = plan.strategy, role.pipeline_rank
            alike[strategy.stage_layers[stage], strategy.recompute[stage]].append(role)
        else:
            found.append(_run(plan, role, [role]))
    place = plan.strategy.pp - WARM_UP
    for same in alike.values():
        if [role.pipeline_rank for role in same] == [place]:
            found.append(_run(plan, same[0], same))
        else:
            moved = _moved(plan, same[0].pipeline_rank, place)
            found.append(_run(moved, roles(moved, (place,))[0], same, f"in the place of stage {place}"))
    return tuple(sorted(found, key=lambda run: -run.length))


def _run(plan: Plan, role: Role, stands_for: Sequence[Role], place: str = "") -> Run:
    """The run of a rank with as few microbatches as tell what it does. stands_for: ranks that hold as many or more.
    place: where it is run, in words, if that is not its own."""
    count, rank, how = plan.num_microbatches, role.pipeline_rank, [place] if place else []
    short = FEW if _adds_up(plan) and _held(plan, rank, count) > FEW else None
    if short is not None:
        how.append(f"with {FEW} microbatches")
    if how:
        words = f"run {' '.join(how)}, and what each further microbatch keeps is added"
        stands_for = [replace(one, reason=f"{one.reason}; {words}") for one in stands_for]
    holds = _held(plan, rank, short or count)
    more = [(one, _held(plan, one.pipeline_rank, count) - holds) for one in stands_for]
    return Run(plan, role, tuple(more), short)


def _adds_up(plan: Plan) -> bool:
    """Whether each microbatch that a rank holds adds the same bytes."""
    schedule = SCHEDULES[plan.strategy.schedule]
    return plan.strategy.num_virtual_stages == 1 and schedule.warm_up is not None and not schedule.weights_apart


def _moves(plan: Plan, rank: int) -> bool:
    """Whether the rank's stage may be run in the place of the third-last rank."""
    count, place = plan.num_microbatches, plan.strategy.pp - WARM_UP
    return (
        _adds_up(plan)
        and len(plan.model.kinds) == 1
        and 0 < rank <= place
        and _held(plan, rank, count) >= _held(plan, place, count) >= WARM_UP
    )


def _held(plan: Plan, rank: int, num_microbatches: int) -> int:
    """Microbatches that a rank holds at once in a step of so many."""
    strategy = plan.strategy
    schedule = SCHEDULES[strategy.schedule]
    return rank_holds(schedule, strategy.pp, num_microbatches, strategy.num_virtual_stages)[rank].in_flight


def _moved(plan: Plan, stage: int, place: int) -> Plan:
    """The plan with two stages in each other's places."""
    strategy = plan.strategy
    layers, recompute = _swapped(strategy.stage_layers, stage, place), _swapped(strategy.recompute, stage, place)
    return replace(plan, strategy=replace(strategy, stage_layers=layers, recompute=recompute))


def _swapped(values: tuple[_T, ...], i: int, j: int) -> tuple[_T, ...]:
    found = [*values]
    found[i], found[j] = found[j], found[i]
    return tuple(found)
