"""What test_solver_parity.py runs in its processes: every plan of one world size, against one process."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autoshard.runtime.worker import Reporter
from tests.multiprocess.parity_workers import _against_one_process, _local_tensors, _surplus, _train
from tests.multiprocess.plans import FP32
from tests.multiprocess.solver_plans import CASES, case

STEPS = 2


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each case, how far the sharded run is from one process."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=timedelta(seconds=120),
    )
    found = {}
    for name in CASES[reporter.world_size]:
        reporter.last_action = name
        plan = case(reporter.world_size, name)
        session, outcomes, _ = _train(plan, reporter, STEPS)
        single = replace(plan, training=replace(plan.training, precision=FP32))
        counted, _, counter = _train(single, reporter, 1)
        gathered: list[Any] = [None] * reporter.world_size
        dist.all_gather_object(gathered, (_local_tensors(session), _surplus(single, counted, counter)))
        if reporter.rank == 0:
            found[name] = {
                **_against_one_process(plan, outcomes, [tensors for tensors, _ in gathered]),
                "collectives": [surplus for _, surplus in gathered],
            }
    return found
