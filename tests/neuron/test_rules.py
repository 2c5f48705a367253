"""Each rule of the contract is refused by the twin in the versions that have it, and not in others."""

from functools import cache
from typing import Any

import pytest

from autoshard.runtime.launch import RunOutcome
from tests.multiprocess.started import first_rank, start
from tests.neuron.conftest import Installed
from tests.neuron.installed import BETA, RELEASE
from tests.neuron.twin.neuron_rules import RULES, in_force


@cache
def _outcomes(installed: Installed, version: str, strict: bool) -> tuple[RunOutcome, RunOutcome]:
    with installed(version, strict):
        return _started("broken", 4), _started("before", 2)


def _found(installed: Installed, version: str, strict: bool) -> dict[str, Any]:
    broken, before = _outcomes(installed, version, strict)
    return {**first_rank(broken), **first_rank(before), **(before.results[1] or {})}


def _started(function: str, world_size: int) -> RunOutcome:
    return start(f"rule_workers:{function}", world_size, {}, 200, package="neuron")


@pytest.mark.parametrize(("version", "strict"), [(RELEASE, True), (BETA, True), (RELEASE, False)])
@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_it_is_refused_where_it_holds(installed: Installed, rule: str, version: str, strict: bool) -> None:
    said = _found(installed, version, strict)[rule]
    holds = rule in in_force(tuple(map(int, version.split(".")[:3])), strict)
    assert (f"[rule {rule}]" in said) == holds, said


def test_each_rule_is_broken_once() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(rule.source for rule in RULES)
    assert "point to point" in in_force((2, 12, 3), strict=True) - in_force((2, 13, 3), strict=True)
