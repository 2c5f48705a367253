"""What test_solver_parity.py runs in its processes: every plan of one world size, against one process."""

from typing import Any

from autoshard.runtime.worker import Reporter
from tests.multiprocess.compared import (
    against_one_process,
    at_rank_0,
    connect,
    leave_groups,
    local_arrays,
    surplus,
    train,
)
from tests.multiprocess.solver_plans import CASES, case

STEPS = 2


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each case, how far the sharded run is from one process."""
    connect(reporter)
    found = {}
    for name in CASES[reporter.world_size]:
        leave_groups()
        reporter.last_action = name
        plan = case(reporter.world_size, name)
        session, outcomes, counter = train(plan, reporter.rank, STEPS, counted=True)
        if ranks := at_rank_0((local_arrays(session), surplus(plan, session, counter)), reporter):
            found[name] = {
                **against_one_process(plan, outcomes, [arrays for arrays, _ in ranks]),
                "collectives": [surplus for _, surplus in ranks],
            }
    return found
