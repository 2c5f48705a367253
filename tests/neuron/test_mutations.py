"""Without one of its guards for the device, autoshard breaks the rule that the guard is there for."""

from functools import cache

import pytest

from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.started import first_rank, start
from tests.neuron.conftest import Installed
from tests.neuron.installed import BETA, RELEASE

RULES = {
    "sums on the host": "[rule float64]",
    "dropout's keys in halves": "[rule int64]",
    "dropout's rows in halves": "[rule int64]",
    "places of rounding in halves": "[rule int64]",
    "a ring by send and receive": "[rule even splits]",
    "an all-to-all of two, gathered": "[rule all-to-all sizes]",
    "experts of two ranks, gathered": "[rule all-to-all sizes]",
    "timing by synchronize": "0, and more with it",
    "contiguous tensors": "[rule contiguous]",
    "control over gloo": "No backend type associated with device type cpu",
    "static shapes": "[rule dynamic shapes]",
    "plain AdamW": "aten::_fused_adamw_",
}
"""Guard -> the end of what is said without it."""
STARTS = {
    "LOCAL_RANK": "[rule local rank]",
    "MASTER_ADDR": "[rule root address]",
    "touching nothing": "[rule group first]",
    "a core of its own": "[rule one core]",
    "a bare name": "[rule index]",
}


@cache
def _outcome(installed: Installed, function: str, version: str, without: str = "") -> RunOutcome:
    with installed(version):
        return start(f"mutation_workers:{function}", 2, {"without": without}, 200, package="neuron")


@pytest.mark.parametrize("guard", RULES)
def test_a_step_without_a_guard(installed: Installed, guard: str) -> None:
    said = first_rank(_outcome(installed, "trained", RELEASE))[guard]
    assert RULES[guard] in said


@pytest.mark.parametrize("guard", STARTS)
def test_a_start_without_a_guard(installed: Installed, guard: str) -> None:
    outcome = _outcome(installed, "started", RELEASE, guard)
    assert outcome.exit_code == 1
    assert STARTS[guard] in outcome.message


def test_a_version_that_does_not_send(installed: Installed) -> None:
    said = first_rank(_outcome(installed, "sent", BETA))
    assert said["gathered"] == ""
    assert "[rule point to point]" in said["ring"]
    assert "[rule point to point]" in said["pipeline"]
