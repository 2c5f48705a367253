"""Random small (model, plan) pairs that the planner finds: searched, not written by hand."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.planner.search import search
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.search_result import Pins
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.started import first_rank, start

PINNED: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2},
    {"pp": 2},
    {"cp": 2},
    {"dp": 2},
    {"ep": 2},
    {"pp": 2, "num_virtual_stages": 2},
    {"pp": 2, "schedule": "zero_bubble"},
    {"microbatch_size": 2},
)
CHOSEN_FROM = 40
"""Layouts of one search, the best and runners-up, of which one is drawn."""


def planned(seed: int, processes: int) -> Plan:
    """A function of its arguments alone."""
    random = Random(f"{seed} {processes}")
    cluster = local_cluster(processes)
    while True:
        model = random.choice(list(MODELS.values()))
        training = TrainingSpec(16, random.choice((4, 8, 16)), load_precision("fp32"))
        try:
            pins = Pins(**random.choice(PINNED))
            found = search(model, training, cluster, pins, backend="torch", top=CHOSEN_FROM)
        except AutoshardError:  # no such layout of this model
            continue
        one = random.choice((found.best, *found.runners_up))
        return make_plan(model, training, cluster, "torch", one.strategy, one.estimate)


def run(plans: list[Plan], exact: bool) -> list[dict[str, Any]]:
    """How far each is from one process; all of as many ranks."""
    with TemporaryDirectory(prefix="autoshard-planned-") as folder:
        paths = [Path(folder) / f"{number}.json" for number in range(len(plans))]
        for plan, path in zip(plans, paths, strict=True):
            write_plan(plan, path)
        outcome = start(
            "planned_workers:parity",
            plans[0].mesh.world_size,
            {"plans": list(map(str, paths)), "exact": exact},
            hang_timeout_s=300,
        )
    found: list[dict[str, Any]] = first_rank(outcome)["plans"]
    return found
