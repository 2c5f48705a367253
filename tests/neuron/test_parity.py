"""Every layout of the parity matrix on the twin, under all of its rules, computes what one process does on a CPU."""

from functools import cache
from typing import Any

import pytest

from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.plans import BF16, IN_BF16, TOLD_BY_FP64
from tests.multiprocess.started import first_rank, start
from tests.neuron.conftest import Installed
from tests.neuron.parity_workers import NAMES


@cache
def _outcome(installed: Installed, world_size: int) -> RunOutcome:
    """The processes run once, even where that fails."""
    with installed():
        return start("parity_workers:parity", world_size, {}, 400, package="neuron")


def _found(installed: Installed, world_size: int) -> dict[str, Any]:
    return first_rank(_outcome(installed, world_size))


@pytest.mark.parametrize(("world_size", "name"), [(n, name) for n, names in NAMES.items() for name in names])
def test_a_step_in_fp32_equals_one_process(installed: Installed, world_size: int, name: str) -> None:
    found = _found(installed, world_size)[name]
    assert found["loss"] < 1e-6
    assert found["norm"] < 1e-5
    assert name in TOLD_BY_FP64 or found["gradient"] < 1e-5  # FP64, which no device here has, tells these
    assert found["fallbacks"] == [], "operators that the device leaves to the host"


@pytest.mark.parametrize(
    ("world_size", "name"), [(n, name) for n, names in NAMES.items() for name in names if name in IN_BF16]
)
def test_losses_in_bf16_follow_one_process_that_rounds_alike(installed: Installed, world_size: int, name: str) -> None:
    for precision, difference in zip(BF16, _found(installed, world_size)[name]["bf16"], strict=True):
        assert difference < 1e-3, precision.name
