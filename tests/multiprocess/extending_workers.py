"""The processes of test_extending.py: rehearsals of schedules that nobody knows."""

from dataclasses import replace
from typing import Any

from autoshard.plans.plan import Plan
from autoshard.runtime.rehearse import rehearse
from autoshard.runtime.worker import Reporter
from autoshard.schedules import SCHEDULES
from tests.multiprocess.compared import against_one_process, at_rank_0, connect, local_arrays, train
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import FP64, plan_of, strategy
from tests.new_schedules import NEW_SCHEDULES

SCHEDULES.update(NEW_SCHEDULES)
PROCESSES, STEPS = 2, 2


def rehearsal(schedule: str) -> Plan:
    """The rehearsal of a plan with four stages."""
    original = plan_of(replace(LLAMA, num_hidden_layers=8), strategy(pp=4, layers=(2,) * 4, schedule=schedule), 8)
    return rehearse(original, PROCESSES, 96).plan


def train_rehearsals(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each schedule, the actions of the ranks and how far they are from one process."""
    connect(reporter)
    found = {}
    for schedule in NEW_SCHEDULES:
        plan = rehearsal(schedule)
        plan = replace(plan, training=replace(plan.training, precision=FP64))
        session, outcomes, counter = train(plan, reporter.rank, STEPS, counted=True)
        if ranks := at_rank_0((local_arrays(session), counter.actions), reporter):
            difference = against_one_process(plan, outcomes, [arrays for arrays, _ in ranks], False)
            found[schedule] = {"difference": difference, "actions": [actions for _, actions in ranks]}
    return found
