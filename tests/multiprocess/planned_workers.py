"""What test_planned_parity.py and benchmarks/planned_parity.py run in their processes: plans from files."""

from dataclasses import replace
from typing import Any

from autoshard.plans.validate import read_plan
from autoshard.runtime.worker import Reporter
from tests.multiprocess.compared import against_one_process, at_rank_0, connect, local_arrays, surplus, train
from tests.multiprocess.plans import FP32, FP64


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each of arguments["plans"], how far the sharded run is from one process.

    Two steps in FP64 where arguments["exact"], else one in FP32; collectives are counted in one in FP32.
    """
    connect(reporter)
    found = []
    for path in arguments["plans"]:
        reporter.last_action = path
        plan = read_plan(path)
        single, exact = (replace(plan, training=replace(plan.training, precision=one)) for one in (FP32, FP64))
        counted, outcomes, counter = train(single, reporter.rank, 1, counted=True)
        counts, compared, session = surplus(single, counted, counter), single, counted
        if arguments["exact"]:
            compared, (session, outcomes, _) = exact, train(exact, reporter.rank, 2)
        if ranks := at_rank_0((local_arrays(session), counts), reporter):
            differences = against_one_process(compared, outcomes, [arrays for arrays, _ in ranks])
            found.append({**differences, "collectives": [counts for _, counts in ranks]})
    return {"plans": found}
