"""A schedule that nobody knows is rehearsed and audited as those that are there."""

from dataclasses import replace

import pytest

from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.cost.estimate import estimate
from autoshard.models import load_model
from autoshard.plans.plan import make_plan
from autoshard.schedules import SCHEDULES, actions
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.extending_workers import PROCESSES, STEPS, rehearsal
from tests.multiprocess.plans import strategy
from tests.multiprocess.started import results
from tests.new_schedules import NEW_SCHEDULES


@pytest.fixture(params=NEW_SCHEDULES)
def schedule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(SCHEDULES, request.param, NEW_SCHEDULES[request.param])
    return str(request.param)


def test_a_rehearsal_equals_one_process(schedule: str) -> None:
    found = results("extending_workers:train_rehearsals", PROCESSES, hang_timeout_s=300)[schedule]
    difference = found["difference"]
    assert difference["loss"] < 1e-12 and difference["gradient"] < 1e-9 and difference["parameter"] < 1e-9
    orders = actions(schedule, PROCESSES, rehearsal(schedule).num_microbatches)
    for order, done in zip(orders, found["actions"], strict=True):
        assert [text for text in done if text[0] in "FB"][: len(order) * STEPS] == [*map(str, order)] * STEPS


def test_an_audit_agrees(schedule: str) -> None:
    """A real model's sizes: with the tiny ones above the largest buffers are not those that the plan counts."""
    model, cluster = replace(load_model("llama3-8b"), num_hidden_layers=4), load_cluster("trn1.32xlarge", 1)
    training = TrainingSpec(4096, 16, load_precision("mixed_precision"))
    chosen = strategy(tp=8, pp=4, layers=(1,) * 4, schedule=schedule, recompute="full")
    plan = make_plan(model, training, cluster, "torch", chosen, estimate(model, training, cluster, chosen))
    held, every = held_orders(plan), roles(plan, (0, 3))
    assert [role.pipeline_rank for role in every] == [0, 3]
    found = [audit_role(plan, role, held) for role in every]
    assert [one.differences for one in found] == [(), ()]
    # eager: 7 and 1 microbatches in flight and three more; the other one does not say when it repeats
    assert [one.microbatches for one in found] == ([10, 4] if schedule == "eager" else [16, 16])
