"""Without one of its guards for the device, autoshard breaks the rule that the guard is there for."""

from functools import cache

import pytest

from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.started import first_rank, start
from tests.neuron.conftest import Installed
from tests.neuron.guards import SENT, STARTS, TRAINED
from tests.neuron.installed import BETA, RELEASE


@cache
def _outcome(installed: Installed, function: str, version: str, without: str = "") -> RunOutcome:
    with installed(version):
        return start(f"mutation_workers:{function}", 2, {"without": without}, 200, package="neuron")


@pytest.mark.parametrize("guard", TRAINED)
def test_a_step_without_a_guard(installed: Installed, guard: str) -> None:
    said = first_rank(_outcome(installed, "trained", RELEASE))[guard]
    assert TRAINED[guard] in said


@pytest.mark.parametrize("guard", STARTS)
def test_a_start_without_a_guard(installed: Installed, guard: str) -> None:
    outcome = _outcome(installed, "started", RELEASE, guard)
    assert outcome.exit_code == 1
    assert STARTS[guard] in outcome.message


def test_a_version_that_does_not_send(installed: Installed) -> None:
    said = first_rank(_outcome(installed, "sent", BETA))
    assert said["gathered"] == ""
    assert all(rule in said["ring"] and rule in said["pipeline"] for rule in SENT.values())
