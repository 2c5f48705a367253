"""Compiled stages on the twin compute what one process does, in as many graphs as the plan and an audit say."""

from functools import cache

import pytest

from autoshard.audits.measure import measure
from autoshard.audits.values import Role
from autoshard.backends.native_neuron import COMPILE_ONLY
from autoshard.plans.stage_sections import rank_graphs
from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.plans import FP32, case
from tests.multiprocess.started import first_rank, start
from tests.neuron.compiled_workers import DP_IN_BF16, native
from tests.neuron.conftest import Installed
from tests.neuron.installed import BETA
from tests.neuron.parity_workers import in_precision

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
WHOLE = ("tp", "tp, plain attention", "dp", "pp", "pp, interleaved", "pp, tied")
AHEAD = ("tp", "dp, ZeRO-3", "pp, interleaved", "mixtral ep")
PIPELINES = ("pp 4", "pp 4, zero bubble", "interleaved x dp x ZeRO-2, tied")


@cache
def _outcome(installed: Installed) -> RunOutcome:
    with installed():
        return start("compiled_workers:parity", 2, {"names": NAMES, "sdk": "2.33"}, 400, package="neuron")


@cache
def _without_sending(installed: Installed) -> RunOutcome:
    with installed(BETA):
        return start("compiled_workers:parity", 4, {"names": PIPELINES, "sdk": "2.32"}, 400, package="neuron")


@pytest.mark.parametrize("name", NAMES)
def test_it_equals_one_process(installed: Installed, name: str) -> None:
    found = first_rank(_outcome(installed))[name]
    assert found["loss"] < 1e-6
    assert found["norm"] < 1e-5
    assert found["gradient"] < 1e-5
    assert found["fallbacks"] == []


@pytest.mark.parametrize("name", DP_IN_BF16)
def test_states_in_bf16_follow_one_process(installed: Installed, name: str) -> None:
    assert first_rank(_outcome(installed))[name]["loss"] < 1e-3


@pytest.mark.parametrize("name", [*NAMES, *DP_IN_BF16])
def test_the_graphs_are_the_planned_ones(installed: Installed, name: str) -> None:
    for planned, compiled, planned_of_twin, seen in first_rank(_outcome(installed))[name]["graphs"]:
        assert planned == compiled, "segments, distinct ones, operators, functions, communicators"
        assert seen == planned_of_twin, "graphs, operators forward, communicators"


@cache
def _precompiled(installed: Installed, compile_only: str) -> RunOutcome:
    with installed(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(COMPILE_ONLY, compile_only)
        return start("compiled_workers:precompiled", 2, {"names": AHEAD}, 400, package="neuron")


@pytest.mark.parametrize("name", AHEAD)
def test_without_computing_the_same_graphs_are_compiled(installed: Installed, name: str) -> None:
    """Two steps: a first one that computes nothing must come to the update, and to the graphs of a second."""
    ahead, computed = (first_rank(_precompiled(installed, value))[name] for value in ("1", "0"))
    assert ahead["loss"] == 0 < computed["loss"]
    assert ahead["compiled"] == computed["compiled"] != []


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_broadcasts_where_ranks_cannot_send(installed: Installed, name: str) -> None:
    found = first_rank(_without_sending(installed))[name]
    assert found["loss"] < 1e-6
    assert found["gradient"] < 1e-5
    for planned, compiled, planned_of_twin, seen in found["graphs"]:
        assert (planned, planned_of_twin) == (compiled, seen)


@cache
def _of_stages(installed: Installed) -> RunOutcome:
    with installed():
        given = {"names": WHOLE, "sdk": "2.33", "stack": "neuron-stages"}
        return start("compiled_workers:parity", 2, given, 400, package="neuron")


@pytest.mark.parametrize("name", WHOLE)
def test_whole_stages_are_graphs_with_collectives_inside(installed: Installed, name: str) -> None:
    found = first_rank(_of_stages(installed))[name]
    assert found["loss"] < 1e-6
    assert found["norm"] < 1e-5
    assert found["gradient"] < 1e-5
    assert found["fallbacks"] == []
    for planned, compiled, planned_of_twin, seen in found["graphs"]:
        assert (planned, planned_of_twin) == (compiled, seen)


@pytest.mark.parametrize("name", WHOLE)
def test_an_audit_counts_what_is_inside(name: str) -> None:
    plan = native(in_precision(case(2, name), FP32), "2.33", "neuron-stages")
    for rank in range(2):
        role = Role(plan.mesh.coordinates(rank)[0], rank, 1, "")
        assert measure(plan, role).graphs == rank_graphs(plan, rank)


@pytest.mark.parametrize("name", [*NAMES, *DP_IN_BF16])
def test_an_audit_counts_the_planned_ones(name: str) -> None:
    plan = in_precision(case(2, "dp" if name in DP_IN_BF16 else name), DP_IN_BF16.get(name, FP32))
    for rank in range(2):
        role = Role(plan.mesh.coordinates(rank)[0], rank, 1, "")
        assert measure(native(plan, "2.33"), role).graphs == rank_graphs(plan, rank)
