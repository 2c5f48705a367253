"""Any request ends in a plan that can be read, explained and priced again, or in one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.random_requests import faults, request, words
from tests.cases import some


@pytest.mark.parametrize("seed", some([*range(2, 24), 0, 1], 4))
def test_a_random_request_ends_in_a_plan_or_in_one_error(seed: int, tmp_path: Path) -> None:
    assert [*faults(request(seed), tmp_path)] == []


def test_a_fault_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("does not fit in memory")

    monkeypatch.setattr("autoshard.planner.search.count_rest", broken)
    given = {"model": "llama3.2-1b", "instance": "h100-80gb", "nodes": "1", "global-batch": "64"}
    (fault,) = faults(given, tmp_path)
    assert fault.startswith("exit code None: Traceback") and "KeyError" in fault
    assert words(given)[:2] == ["--model", "llama3.2-1b"]
