"""Audits a plan, role by role, on as many processes as there are cores. Torch is imported by those alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from autoshard.audit.compare import differences, rows
from autoshard.audit.expected import expectation, shortened
from autoshard.audit.roles import roles
from autoshard.audit.values import Difference, Role, RoleAudit
from autoshard.errors import AutoshardError
from autoshard.layout.plan import Plan
from autoshard.schedules import actions, simulate

PROCESSES = 2
Found = TypeVar("Found")
Orders = tuple[tuple[str, ...], ...]


def audit(
    plan: Plan, pipeline_ranks: tuple[int, ...] | None, on_role: Callable[[int, int, RoleAudit], None]
) -> tuple[RoleAudit, ...]:
    """Every role of the chosen pipeline ranks (None: all), in their order. on_role: told (done, all, what was found).

    Raises AutoshardError for a pipeline rank that the plan does not have, and where torch is missing.
    """
    wanted = roles(plan, pipeline_ranks)
    processes = min(PROCESSES, os.cpu_count() or 1, len(wanted))
    found: dict[int, RoleAudit] = {}
    with _pool(processes) as pool:
        (orders,) = map(_outcome, _submitted(pool, held_orders, [(plan,)]))
        tasks = _submitted(pool, audit_role, [(plan, role, orders) for role in wanted])
        waiting = {task: index for index, task in enumerate(tasks)}
        for one in as_completed(waiting):
            found[waiting[one]] = _outcome(one)
            on_role(len(found), len(wanted), found[waiting[one]])
    return tuple(found[index] for index in range(len(wanted)))


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Left by an exception, such as Ctrl-C, its processes end at once and not when their work is done."""
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(
    pool: ProcessPoolExecutor, function: Callable[..., Found], arguments: Iterable[tuple[Any, ...]]
) -> list[Future[Found]]:
    """Processes that start here never hear of Ctrl-C: a terminal tells all of them, and each would have its say."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(function, *one) for one in arguments]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outcome(one: Future[Found]) -> Found:
    try:
        return one.result()
    except BrokenProcessPool:
        raise AutoshardError("a process of the audit was ended from outside; was there enough memory?") from None


def held_orders(plan: Plan) -> Orders:
    """What the runtime holds for each pipeline rank and all microbatches."""
    orders: Orders = _measuring().runtime_orders(plan)
    return orders


def audit_role(plan: Plan, role: Role, orders: Orders) -> RoleAudit:
    """Run the role's program in this process and compare. orders: of `held_orders`."""
    start = time.perf_counter()
    measured = _measuring().measure(plan, role)
    expected = expectation(plan, role.pipeline_rank)
    short = expectation(shortened(plan, measured.microbatches), role.pipeline_rank).order
    found = rows(plan, expected, measured)
    held = orders[role.pipeline_rank] if orders else expected.order
    apart = differences(found, expected, measured, (short, expected.order, held))
    apart += tuple(_deadlock(plan))
    seconds = time.perf_counter() - start
    return RoleAudit(role, found, apart, expected.unmatched, measured.peak_at, measured.microbatches, seconds)


def _measuring() -> ModuleType:
    try:
        from autoshard.audit import measure
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
