"""A schedule that nobody knows is rehearsed and audited as those that are there."""

import pytest

from autoshard.audit.roles import Role, roles
from autoshard.audit.run import audit_role, held_orders
from autoshard.schedules import SCHEDULES, actions
from tests.multiprocess.extending_workers import PROCESSES, STEPS, rehearsal
from tests.multiprocess.started import results
from tests.new_schedules import NEW_SCHEDULES


@pytest.fixture(params=NEW_SCHEDULES)
def schedule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(SCHEDULES, request.param, NEW_SCHEDULES[request.param])
    return str(request.param)


def test_a_rehearsal_equals_one_process(schedule: str) -> None:
    found = results("extending_workers:train_rehearsals", PROCESSES, hang_timeout_s=300)[schedule]
    assert max(found["difference"].values()) < 1e-9
    orders = actions(schedule, PROCESSES, rehearsal(schedule).num_microbatches)
    for order, done in zip(orders, found["actions"], strict=True):
        assert [text for text in done if text[0] in "FB"][: len(order) * STEPS] == [*map(str, order)] * STEPS


def test_an_audit_agrees(schedule: str) -> None:
    plan = rehearsal(schedule)
    held, every = held_orders(plan), roles(plan, None)
    assert every and all(isinstance(role, Role) for role in every)
    for role in every:
        assert audit_role(plan, role, held).differences == ()
