"""What test_planned_parity.py and benchmarks/planned_parity.py run in their processes: plans from files."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autoshard.layout.validate import read_plan
from autoshard.runtime.worker import Reporter
from tests.multiprocess.parity_workers import _against_one_process, _local_tensors, _surplus, _train
from tests.multiprocess.plans import FP32, FP64


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each of arguments["plans"], how far the sharded run is from one process.

    Two steps in FP64 where arguments["exact"], else one in FP32; collectives are counted in one in FP32.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=timedelta(seconds=300),
    )
    found = []
    for path in arguments["plans"]:
        reporter.last_action = path
        plan = read_plan(path)
        single, exact = (replace(plan, training=replace(plan.training, precision=one)) for one in (FP32, FP64))
        counted, outcomes, counter = _train(single, reporter, 1)
        surplus, compared, session = _surplus(single, counted, counter), single, counted
        if arguments["exact"]:
            compared, (session, outcomes, _) = exact, _train(exact, reporter, 2)
        gathered: list[Any] = [None] * reporter.world_size
        dist.all_gather_object(gathered, (_local_tensors(session), surplus))
        if reporter.rank == 0:
            differences = _against_one_process(compared, outcomes, [tensors for tensors, _ in gathered])
            found.append({**differences, "collectives": [surplus for _, surplus in gathered]})
    return {"plans": found}
