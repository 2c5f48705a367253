"""Where a person types, long calls beside `plan` and `search` show that they run, and Ctrl-C gives what is known."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.interface import questions, running, watch
from autoshard.interface.questions import Explanation
from autoshard.planner.kept import Kept


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return autoshard.plan("llama3-8b", nodes=2)


def interrupted_at(monkeypatch: pytest.MonkeyPatch, look: int) -> None:
    """A person types at this Python, and presses Ctrl-C at a look of the watch, the first of which is 1."""
    asked, looks = watch._Watch.__call__, iter(range(1, 1_000_000))

    def interrupted(self: watch._Watch) -> bool:
        if next(looks) == look:
            self.on_interrupt(2, None)
        return asked(self)

    monkeypatch.setattr(watch, "is_interactive", lambda: True)
    monkeypatch.setattr(questions, "ANSWERED", Kept(1))
    monkeypatch.setattr(watch._Watch, "__call__", interrupted)


def test_an_interrupted_explanation_says_what_is_open(plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(monkeypatch, 1)
    found = autoshard.explain(plan)
    assert isinstance(found, Explanation) and found.description.sensitivity is not None
    assert "another tp" in found.description.sensitivity.unanswered
    assert "Not yet" in found.page()


def test_an_interrupted_report_is_a_page(plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(monkeypatch, 1)
    assert "No time was left for: another tp" in autoshard.report(plan)


def test_an_interrupted_replan_is_a_plan(plan: autoshard.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(monkeypatch, 1)
    assert autoshard.replan(plan, 1).cluster.nodes == 1


def test_a_sweep_in_a_notebook_counts_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "is_interactive", lambda: True)
    grid = {"model": "llama3.2-1b", "seq_len": 2048, "nodes": [1, 2]}
    assert autoshard.sweep(grid, tmp_path).planned == 2
    lines = capsys.readouterr().err.split("\r")
    assert [line.rstrip() for line in lines if "of 2" in line] == ["points: 1 of 2 ok", "points: 2 of 2 ok"]
    assert lines[-1] == ""


@pytest.mark.parametrize("look", [1, None])
def test_an_interrupted_frontier_has_the_points_that_are_done(
    look: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: only the first; cut short are also those behind a search that was."""
    interrupted_at(monkeypatch, look or 0)
    points = autoshard.frontier("llama3-8b", nodes=4).to_list()
    assert [point["nodes"] for point in points] == ([1] if look else [1, 2, 4])


@pytest.mark.parametrize(
    "call", [lambda plan: autoshard.explain(plan, time_limit=9), lambda plan: autoshard.report(plan)]
)
def test_a_line_shows_how_long_it_runs(plan: autoshard.Plan, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(monkeypatch, 40)
    monkeypatch.setattr(watch, "QUIET_S", 0.0)
    monkeypatch.setattr(watch, "EVERY_S", 0.0)
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    call(plan)
    assert re.search(r"(explaining|reporting on) llama3-8b: \d+ s; Ctrl-C takes what is known", out.getvalue())
