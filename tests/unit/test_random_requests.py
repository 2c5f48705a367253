"""Any request ends in a plan that can be read, explained and priced again, or in one error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.random_requests import called, faster_with_a_pin, faults, request, scored_otherwise, words
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


def test_another_price_than_a_plan_says_is_seen(tmp_path: Path) -> None:
    """A plan that says twice its seconds: its score says half of them, and so does a pin."""
    given = {"model": "llama3.2-1b", "instance": "h100-80gb", "nodes": "1", "global-batch": "64"}
    file = tmp_path / "plan.json"
    called("plan", *words(given), "--out", str(file))
    plan = json.loads(file.read_text())
    assert [*scored_otherwise(plan, file), *faster_with_a_pin(given, plan, tmp_path / "other.json")] == []
    plan["estimate"]["step_time_s"] *= 2
    (scored,) = scored_otherwise(plan, file)
    assert scored.startswith("its score says 1.1") and "the plan 2.3" in scored
    (pinned,) = faster_with_a_pin(given, plan, tmp_path / "other.json")
    assert pinned.endswith("of what is called optimal")
