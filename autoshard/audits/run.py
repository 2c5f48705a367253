"""Audits a plan, role by role, on as many processes as there are cores. Torch is imported by those alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType

from autoshard.audits.compare import differences, rows
from autoshard.audits.expected import expectation, shortened
from autoshard.audits.pool import Pool, clean_end
from autoshard.audits.roles import roles
from autoshard.audits.values import Difference, Role, RoleAudit
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.schedules import actions, simulate

PROCESSES = 2
Orders = tuple[tuple[str, ...], ...]


def audit(
    plan: Plan, pipeline_ranks: tuple[int, ...] | None, on_role: Callable[[int, int, RoleAudit], None]
) -> tuple[RoleAudit, ...]:
    """Every role of the chosen pipeline ranks (None: all), in their order. on_role: told (done, all, what was found).

    Raises AutoshardError for a pipeline rank that the plan does not have, and where torch is missing.
    """
    wanted = roles(plan, pipeline_ranks)
    processes = min(PROCESSES, os.cpu_count() or 1, len(wanted))
    audit_of: dict[int, RoleAudit] = {}
    with clean_end(), Pool(processes) as pool:
        ((_, orders),) = pool.results(held_orders, [(plan,)])
        for index, role_audit in pool.results(audit_role, [(plan, role, orders) for role in wanted]):
            audit_of[index] = role_audit
            on_role(len(audit_of), len(wanted), role_audit)
    return tuple(audit_of[index] for index in range(len(wanted)))


def held_orders(plan: Plan) -> Orders:
    """Actions that the runtime holds for a step, by pipeline rank; empty where the plan has no pipeline."""
    orders: Orders = _measuring().runtime_orders(plan)
    return orders


def audit_role(plan: Plan, role: Role, orders: Orders) -> RoleAudit:
    """Run the role's program in this process and compare. orders: of `held_orders`."""
    start = time.perf_counter()
    measured = _measuring().measure(plan, role)
    expected = expectation(plan, role.pipeline_rank, role.rank)
    short = expectation(shortened(plan, measured.microbatches), role.pipeline_rank).order
    compared = rows(plan, expected, measured)
    held = orders[role.pipeline_rank] if orders else expected.order
    apart = differences(compared, expected, measured, (short, expected.order, held))
    apart += tuple(_deadlock(plan))
    seconds = time.perf_counter() - start
    return RoleAudit(role, compared, apart, expected.unmatched, measured.peak_at, measured.microbatches, seconds)


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
