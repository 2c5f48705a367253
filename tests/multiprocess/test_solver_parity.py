"""Plans with operators of the solver's: sharded equals unsharded, with exactly the collectives that the plan lists."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from autoshard.layout.plan import operator_choices
from autoshard.runtime.launch import run_processes
from tests.multiprocess.solver_plans import CASES, case


@cache
def results(world_size: int) -> dict[str, Any]:
    outcome = run_processes(
        "tests.multiprocess.solver_workers:parity",
        {},
        world_size,
        on_message=lambda message: None,
        log_directory=Path(mkdtemp()),
        hang_timeout_s=200,
        trusted_prefix="tests.",
    )
    assert outcome.exit_code == 0, outcome.message
    found = outcome.results[0]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("world_size", "name"), [(world_size, name) for world_size, cases in CASES.items() for name in cases]
)
def test_two_steps_in_fp64_equal_one_process_with_the_planned_collectives(world_size: int, name: str) -> None:
    found = results(world_size)[name]
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
            assert plan.operators != operator_choices(plan.model, plan.cluster, plan.strategy)
            values |= {value for choice in plan.operators.values() for value in choice.values()}
    assert values >= {"batch", "seq", "embed", "ffn", "kvhead", "group", "headdim", "vocab", "expert", "I", "R", "P"}
