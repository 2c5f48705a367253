"""Compiled stages on the twin compute what one process does, in as many graphs as the plan says."""

from functools import cache

import pytest

from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.started import first_rank, start
from tests.neuron.conftest import Installed

ROUNDED = "dp, rounded at random"
NAMES = (
    "tp",
    "tp, plain attention",
    "dp, ZeRO-3",
    "pp, interleaved",
    "pp, zero bubble",
    "zigzag ring",
    "mixtral ep",
    "recompute attention and MLP",
    "dropout, gpt2 tp, recompute all",
)


@cache
def _outcome(installed: Installed) -> RunOutcome:
    with installed():
        return start("compiled_workers:parity", 2, {"names": NAMES}, 400, package="neuron")


@pytest.mark.parametrize("name", NAMES)
def test_it_equals_one_process(installed: Installed, name: str) -> None:
    found = first_rank(_outcome(installed))[name]
    assert found["loss"] < 1e-6
    assert found["norm"] < 1e-5
    assert found["gradient"] < 1e-5
    assert found["fallbacks"] == []


def test_weights_rounded_at_random_follow_one_process(installed: Installed) -> None:
    assert first_rank(_outcome(installed))[ROUNDED]["loss"] < 1e-3


@pytest.mark.parametrize("name", [*NAMES, ROUNDED])
def test_the_graphs_are_the_planned_ones(installed: Installed, name: str) -> None:
    for planned, compiled, planned_of_twin, seen in first_rank(_outcome(installed))[name]["graphs"]:
        assert planned == compiled, "segments, distinct ones, operators, functions, communicators"
        assert seen == planned_of_twin, "graphs, operators forward, communicators"
