"""What test_parity.py runs in its processes: every plan of one world size, against one process."""

from dataclasses import replace
from typing import Any

from autoshard.plans.plan import Plan
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.worker import Reporter
from autoshard.spec.training import Precision
from tests.multiprocess.compared import (
    Arrays,
    against_one_process,
    at_rank_0,
    connect,
    leave_groups,
    local_arrays,
    surplus,
    train,
)
from tests.multiprocess.plans import CASES, FP32, IN_BF16, IN_FP32, PACKED, case

STEPS, BF16_STEPS = 2, 3
"""The second step begins with what the first one left: other weights, the optimizer's state, sums to set to zero."""
BF16_LEARNING_RATE = 1e-3
"""Adam turns the rounding of a small gradient into a whole step: at 1e-2 three of them move these losses by 0.2 %."""


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each case, how far the sharded run is from one process."""
    connect(reporter)
    found: dict[str, dict[str, Any]] = {}
    for name in arguments.get("names", CASES[reporter.world_size]):
        reporter.last_action = name
        leave_groups()
        plan = case(reporter.world_size, name, few_blocks=True)
        single = replace(plan, training=replace(plan.training, precision=FP32))
        packed, compared = name in PACKED, name in IN_FP32[reporter.world_size]
        exact, exact_outcomes, counter = train(plan, reporter.rank, STEPS, counted=True, documents=packed)
        rounded_arrays: Arrays = {}
        if compared:
            rounded, rounded_outcomes, _ = train(single, reporter.rank, 1, documents=packed)
            rounded_arrays = local_arrays(rounded)
        own = local_arrays(exact), rounded_arrays, surplus(plan, exact, counter), counter.actions
        if ranks := at_rank_0(own, reporter):
            found[name] = {
                "fp64": against_one_process(plan, exact_outcomes, [one[0] for one in ranks], packed),
                "collectives": [one[2] for one in ranks],
                "actions": [one[3] for one in ranks],
            }
            if compared:
                arrays = [one[1] for one in ranks]
                found[name]["fp32"] = against_one_process(single, rounded_outcomes, arrays, packed)
        if name in IN_BF16:
            differences = [_bf16_difference(plan, precision, reporter.rank) for precision in IN_BF16[name]]
            if reporter.rank == 0:
                found[name]["bf16"] = differences
    return found


def _bf16_difference(plan: Plan, precision: Precision, rank: int) -> dict[str, Any]:
    """Of three steps' losses, against one process that rounds where this one does."""
    rounded = replace(plan, training=replace(plan.training, precision=precision))
    session, outcomes, counter = train(rounded, rank, BF16_STEPS, True, BF16_LEARNING_RATE)
    expected = outcomes
    if rank == 0:
        _, expected, _ = train(one_process(rounded), 0, BF16_STEPS, learning_rate=BF16_LEARNING_RATE)
    pairs = zip(outcomes, expected, strict=True)
    return {"loss": max(abs(a[0] - b[0]) / b[0] for a, b in pairs), "collectives": surplus(rounded, session, counter)}
