"""Audits a plan, role by role, on as many processes as there are cores. Torch is imported by those alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from autoshard.audits.compare import differences, rows, with_order
from autoshard.audits.expected import expectation, expected_order, shortened
from autoshard.audits.pool import Pool, clean_end
from autoshard.audits.roles import roles
from autoshard.audits.shared import Run, alone, runs
from autoshard.audits.values import Difference, Role, RoleAudit
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.schedules import actions, simulate

PROCESSES = 2
Orders = tuple[tuple[str, ...], ...]


def audit(
    plan: Plan,
    pipeline_ranks: tuple[int, ...] | None,
    on_role: Callable[[int, int, RoleAudit], None],
    in_place: bool = False,
) -> tuple[RoleAudit, ...]:
    """Every role of the chosen pipeline ranks (None: all), in their order.

    on_role: told (done, all, what was found). in_place: each is run in its own place with all microbatches that it
    holds, also where another one runs the same program. Takes two to ten times as long.
    Raises AutoshardError for a pipeline rank that the plan does not have, and where torch is missing.
    """
    wanted = roles(plan, pipeline_ranks)
    programs = tuple(alone(plan, role) for role in wanted) if in_place else runs(plan, wanted)
    calls: list[tuple[Any, ...]] = [(held_orders, plan), *((_run_audits, plan, run) for run in programs)]
    processes = min(PROCESSES, os.cpu_count() or 1, len(calls))
    orders: Orders | None = None
    begun: list[RoleAudit] = []
    audit_of: dict[int, RoleAudit] = {}
    with clean_end(), Pool(processes) as pool:
        for number, answer in pool.results(_called, calls):
            if number:
                begun += answer
            else:
                orders = answer
            while orders is not None and begun:
                one = _with_orders(plan, begun.pop(0), orders)
                audit_of[one.role.rank] = one
                on_role(len(audit_of), len(wanted), one)
    return tuple(audit_of[role.rank] for role in wanted)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def held_orders(plan: Plan) -> Orders:
    """Actions that the runtime holds for a step, by pipeline rank; empty where the plan has no pipeline."""
    if plan.strategy.pp == 1:
        return ()
    orders: Orders = _measuring().runtime_orders(plan)
    return orders


def audit_role(plan: Plan, role: Role, orders: Orders) -> RoleAudit:
    """Run the role's program in its own place, in this process, and compare. orders: of `held_orders`."""
    return _with_orders(plan, _run_audits(plan, alone(plan, role))[0], orders)


def _run_audits(plan: Plan, run: Run) -> tuple[RoleAudit, ...]:
    """Run one program in this process, and compare each role that it stands for with the plan, but for the orders that
    the runtime holds for all microbatches. The first role's audit has the seconds of all."""
    start = time.perf_counter()
    measurements = _measuring().measure_all(run.plan, run.role, [more for _, more in run.roles], run.num_microbatches)
    found = []
    for (role, _), measured in zip(run.roles, measurements, strict=True):
        expected = expectation(plan, role.pipeline_rank, role.rank)
        short = expected_order(shortened(run.plan, measured.microbatches), run.role.pipeline_rank)
        compared = rows(plan, expected, measured)
        apart = (*differences(compared, measured, short), *_deadlock(plan))
        seconds, start = time.perf_counter() - start, time.perf_counter()
        facts = (compared, apart, expected.unmatched, measured.peak_at, measured.microbatches)
        found.append(RoleAudit(role, *facts, seconds))
    return tuple(found)


def _with_orders(plan: Plan, audit: RoleAudit, orders: Orders) -> RoleAudit:
    """The audit with what the runtime holds for all microbatches, where that is not the plan's order."""
    if not orders:
        return audit
    rank = audit.role.pipeline_rank
    return replace(audit, differences=with_order(audit.differences, expected_order(plan, rank), orders[rank]))


def _measuring() -> ModuleType:
    try:
        from autoshard.audits import measure
    except ModuleNotFoundError as error:
        raise AutoshardError(f"audit needs torch: pip install 'autoshard[torch]' ({error.name} is missing)") from None
    return measure


def _deadlock(plan: Plan) -> Iterator[Difference]:
    """Whether the plan's orders come to an end on a clock."""
    strategy, stages = plan.strategy, len(plan.stages)
    orders = actions(strategy.schedule, strategy.pp, plan.num_microbatches, strategy.num_virtual_stages)
    try:
        simulate(orders, [1.0] * stages, [2.0] * stages)
    except AutoshardError as error:
        yield Difference("schedule", str(error), 0, 1)
