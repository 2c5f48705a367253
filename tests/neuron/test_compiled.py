"""Compiled stages on the twin compute what one process does, in as many graphs as the plan and an audit say."""

from dataclasses import replace
from functools import cache

import pytest

from autoshard.audits.measure import measure
from autoshard.audits.values import Role
from autoshard.plans.stage_sections import rank_graphs
from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.plans import BF16, FP32, case
from tests.multiprocess.started import first_rank, start
from tests.neuron.conftest import Installed
from tests.neuron.parity_workers import in_precision

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


@pytest.mark.parametrize("name", [*NAMES, ROUNDED])
def test_an_audit_counts_the_planned_ones(name: str) -> None:
    plan = in_precision(case(2, "dp" if name == ROUNDED else name), BF16[1] if name == ROUNDED else FP32)
    native = replace(plan, cluster=replace(plan.cluster, layout_rules="trn2", lnc=2, stack="neuron-compiled"))
    for rank in range(2):
        role = Role(plan.mesh.coordinates(rank)[0], rank, 1, "")
        assert measure(native, role).graphs == rank_graphs(plan, rank)
