"""Sharded equals unsharded, whatever the layout; and the collectives executed are those that the plan lists."""

from typing import Any

import pytest

from autoshard.schedules import actions
from tests.multiprocess.parity_workers import STEPS
from tests.multiprocess.plans import CASES, IN_BF16, IN_FP32, case
from tests.multiprocess.started import results


def found_of(world_size: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = results("parity_workers:parity", world_size, hang_timeout_s=400)[name]
    return found


EVERY_CASE = pytest.mark.parametrize(
    ("world_size", "name"), [(world_size, name) for world_size, cases in CASES.items() for name in cases]
)


@EVERY_CASE
def test_two_steps_in_fp64_equal_one_process(world_size: int, name: str) -> None:
    found = found_of(world_size, name)["fp64"]
    assert found["loss"] < 1e-12
    assert found["norm"] < 1e-9
    assert found["gradient"] < 1e-9
    assert found["parameter"] < 1e-9


@pytest.mark.parametrize(("world_size", "name"), [(n, name) for n in CASES for name in CASES[n] if name in IN_FP32[n]])
def test_gradients_in_fp32_equal_one_process(world_size: int, name: str) -> None:
    found = found_of(world_size, name)["fp32"]  # Adam amplifies rounding near zero: parameters are compared in FP64
    assert found["loss"] < 1e-6
    assert found["norm"] < 1e-5
    assert found["gradient"] < 1e-5


@EVERY_CASE
def test_collectives_executed_are_the_planned_ones(world_size: int, name: str) -> None:
    for rank, surplus in enumerate(found_of(world_size, name)["collectives"]):
        assert surplus == {"executed": "{}", "planned": "{}"}, f"rank {rank}"


@EVERY_CASE
def test_the_order_executed_is_the_plans(world_size: int, name: str) -> None:
    plan = case(world_size, name)
    strategy = plan.strategy
    orders = actions(strategy.schedule, strategy.pp, plan.num_microbatches, strategy.num_virtual_stages)
    for rank, executed in enumerate(found_of(world_size, name)["actions"]):
        pipeline_rank, _ = plan.mesh.coordinates(rank)
        step = [*map(str, orders[pipeline_rank]), "summing gradients and updating parameters"]
        assert executed == STEPS * step, f"rank {rank}"


@pytest.mark.parametrize(("world_size", "name"), [(n, name) for n in CASES for name in CASES[n] if name in IN_BF16])
def test_losses_in_bf16_follow_one_process_that_rounds_alike(world_size: int, name: str) -> None:
    for precision, found in zip(IN_BF16[name], found_of(world_size, name)["bf16"], strict=True):
        assert found["loss"] < 1e-3, precision.name
        assert found["collectives"] == {"executed": "{}", "planned": "{}"}, precision.name
