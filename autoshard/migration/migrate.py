"""A configuration of NxD Training becomes a plan for torch, native PyTorch where the devices have it.

What stays: model, batch, sequence length, precision. The layout is searched anew, because other devices and another
stack want another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

from autoshard.backends.registry import ANYWHERE, as_run_by
from autoshard.backends.rules import Problem
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.interop.nxdt_training import Learning, read_learning
from autoshard.migration.target import Target
from autoshard.planner.answer import Answer
from autoshard.planner.best_practice import best_practice
from autoshard.planner.imported import plan_of
from autoshard.planner.planning import plan_of as plan_of_answer
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.planner.written import read_written
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec

MOST_DOUBLINGS = 4
"""Times that the number of nodes is doubled where nothing fits."""
_CONSUMED = re.compile(r"consumed_samples=(\d{1,15})")


@dataclass(frozen=True)
class Migration:
    """A configuration before and after.

    before: as NxD ran it, without the loss of routers, which backend nxd does not have. after: on torch, with it.
    learning: how it learns. warnings: what the file says that changes the step and that no plan holds. left_out: keys
    of the file that neither plan nor learning holds.
    """

    file: str
    before: Plan
    after: Plan
    learning: Learning
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]


def migrate(file: str, given: Mapping[str, Any], target: Target) -> Migration:
    """The migration of a configuration. given: checked options of `autoshard plan` that say what the file does not.

    Raises AutoshardError for a file that is no configuration of NxD Training, and where no layout is legal or fits.
    """
    learning, written = read_learning(file), read_written(file, given, recipes=False)
    model = written.problem.model
    without = written.problem._replace(model=replace(model, router_aux_loss_coef=0.0))
    before = plan_of(file, replace(written, problem=without))
    if model.is_moe:
        model = replace(model, router_aux_loss_coef=learning.router_aux_loss_coef)
    after = _planned(before, model, target)
    left_out = tuple(key for key in written.left_out if key in learning.left_out)
    return Migration(file, before, after, learning, written.warnings, left_out)


def _planned(before: Plan, model: ModelSpec, target: Target) -> Plan:
    """The best plan for a model and the training of another plan. Where no number of nodes is asked for, it is doubled
    until something fits."""
    one = as_run_by(load_cluster(target.instance, 1, target.lnc, sdk=target.sdk), ANYWHERE.name, target.stack)
    counts = (target.nodes,)
    if target.nodes is None:
        least = 2 ** max(0, round(log2(_peak(before, before.cluster) / _peak(before, one))))
        counts = tuple(least * 2**doubling for doubling in range(MOST_DOUBLINGS + 1))
    refused = AutoshardError("")
    for nodes in counts:
        assert nodes is not None
        cluster = replace(one, nodes=nodes)
        problem = Problem(model, before.training, cluster, ANYWHERE.name)
        try:
            result = search(*problem[:3], Pins(), problem.backend)
        except NoLayoutFits as error:
            refused = error
            continue
        notes = (*result.notes, *best_practice(problem, result.best, FIT_PROBABILITY))
        request = PlanRequest(model.name, target.instance, nodes, backend=ANYWHERE.name)
        return plan_of_answer(request, Answer(problem, result, notes))
    raise refused


def _peak(plan: Plan, cluster: Cluster) -> float:
    return cluster.world_size * cluster.device.peak_flops_per_s(plan.training.precision.fastest_dtype)


def consumed_samples(checkpoint: Path) -> int | None:
    """Sequences that a run had seen when it saved, as NxD Training writes into the name of a checkpoint's folder:
    'llama--step=100-consumed_samples=102400.0.ckpt'; None where neither the folder nor one above it says so."""
    for part in reversed(checkpoint.parts):
        if found := _CONSUMED.search(part):
            return int(found[1])
    return None
