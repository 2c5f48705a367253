"""Plans with operators of the solver's: sharded equals unsharded, with exactly the collectives that the plan lists."""

import pytest

from autoshard.plans.plan import operator_choices
from tests.multiprocess.solver_plans import CASES, case
from tests.multiprocess.started import results


@pytest.mark.parametrize(
    ("world_size", "name"), [(world_size, name) for world_size, cases in CASES.items() for name in cases]
)
def test_two_steps_in_fp64_equal_one_process_with_the_planned_collectives(world_size: int, name: str) -> None:
    found = results("solver_workers:parity", world_size, hang_timeout_s=200)[name]
    assert found["loss"] < 1e-12
    assert found["norm"] < 1e-9
    assert found["gradient"] < 1e-9
    assert found["parameter"] < 1e-9
    for rank, surplus in enumerate(found["collectives"]):
        assert surplus == {"executed": "{}", "planned": "{}"}, f"rank {rank}"


def test_the_choices_are_many_and_not_the_rule() -> None:
    values = set()
    for world_size, cases in CASES.items():
        for name in cases:
            plan = case(world_size, name)
            assert plan.operators != operator_choices(plan.model, plan.training, plan.cluster, plan.strategy)
            values |= {value for choice in plan.operators.values() for value in choice.values()}
    assert values >= {"batch", "seq", "embed", "ffn", "kvhead", "group", "headdim", "vocab", "expert", "I", "R", "P"}
