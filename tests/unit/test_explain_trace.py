"""--measured and trace: a run beside its plan, a step as spans that fill it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.explanation.measured import measured_run
from autoshard.explanation.trace import PREDICTED_PROCESS, communication_share, measured_events, predicted_events
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json, write_plan
from autoshard.plans.prices import priced
from autoshard.plans.timeline import planned_timeline
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --measured


def run_json(plan: Plan, **changes: Any) -> str:
    """A run that took twice the predicted time."""
    profile = {
        "bubble_fraction": 0.2,
        "planned_bubble_fraction": 0.1,
        "ranks": [
            {"rank": rank, "step_s": 9.0, "actions_s": 5.0 + rank, "waiting_s": 2.0, "collectives_s": 1.0,
             "gradient_sync_s": 0.5, "parameter_gather_s": 0.25, "update_s": 0.125}
            for rank in (0, 1)
        ],
    }  # fmt: skip
    values = {
        "format_version": 1,
        "plan_sha256": hashlib.sha256(plan_to_json(plan).encode()).hexdigest(),
        "world_size": plan.mesh.world_size,
        "steps": 30,
        "global_batch_size": plan.training.global_batch_size,
        "sequence_length": plan.training.sequence_length,
        "first_loss": 9.0,
        "last_loss": 3.0,
        "step_time_s": {"median": 2 * plan.estimate.step_time_s, "p10": 1.0, "p90": 3.0},
        "tokens_per_s": plan.estimate.tokens_per_s / 2,
        "compile": None,
        "ranks": [
            {"rank": rank, "stages": [], "peak_memory_bytes": 10**9 + rank} for rank in range(plan.mesh.world_size)
        ],
        "profile": profile,
        **changes,
    }
    Path("run.json").write_text(json.dumps(values))
    return "run.json"


def test_measured_beside_predicted() -> None:
    plan = plan_interleaved()
    run = measured_run(plan, run_json(plan))
    rows = {row.name: row for row in run.rows}
    assert rows["step time, median"].ratio == pytest.approx(2)
    assert rows["tokens/s"].ratio == pytest.approx(0.5)
    assert rows["computing"].actual == 5.0  # rank 1 computes longest: 6 s, 1 s of them in collectives
    assert rows["computing"].predicted == 100.0
    assert (rows["waiting in the pipeline"].predicted, rows["waiting in the pipeline"].actual) == (5.0, 2.0)
    assert rows["gradient sums"].ratio is None  # nothing was predicted
    assert rows["peak memory, pipeline rank 1"].actual == 1e9 + 7
    assert not run.within


def test_terms_of_the_plan_are_measured_once() -> None:
    plan = plan_interleaved()
    rows = measured_run(plan, run_json(plan)).rows
    predicted = sum(row.predicted for row in rows[3:-3] if row.unit == "s")
    assert predicted == pytest.approx(plan.estimate.step_time_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan_sha256": "0"}, "run.json was measured with another plan, on 8 ranks; this one has 8. A rehearsal runs"),
        ({"format_version": 9}, "run.json has format_version 9; this autoshard reads 1"),
        ({"format_version": True}, "run.json has format_version True; this autoshard reads 1"),
        ({"format_version": {"a": 1}}, "run.json has format_version an object of 1; this autoshard reads 1"),
        ({"ranks": None}, "run.json.ranks is None; it must be a list"),
        ({"ranks": []}, "ranks of run.json must not be empty"),
        ({"ranks": [{"rank": 0, "stages": []}]}, "run.json.ranks[0] lacks peak_memory_bytes"),
        (
            {"ranks": [{"rank": 8, "stages": [], "peak_memory_bytes": 1}]},
            "run.json has a rank 8; this plan has 8, counted from 0",
        ),
        ({"world_size": 16}, "world_size=16 of run.json must be this plan's, 8"),
        ({"global_batch_size": 1}, "global_batch_size=1 of run.json must be this plan's, 8"),
        ({"sequence_length": 1}, "sequence_length=1 of run.json must be this plan's, 256"),
        ({"steps": 0}, "run.json.steps is 0; it must be a whole number of at least 1"),
        (
            {"step_time_s": {"median": "1", "p10": 1, "p90": 1}},
            "run.json.step_time_s.median is '1'; it must be a",
        ),
        ({"profile": True}, "run.json.profile must be an object with named fields, not true or false"),
    ],
)
def test_a_wrong_run(changes: dict[str, Any], message: str) -> None:
    plan = plan_interleaved()
    with pytest.raises(AutoshardError) as error:
        measured_run(plan, run_json(plan, **changes))
    assert str(error.value).startswith(message)


def test_a_run_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    plan = priced(plan_interleaved())
    write_plan(plan, "plan.json")
    assert main(["explain", "plan.json", "--measured", "missing.json"]) == 2
    assert capsys.readouterr().err == "autoshard: error: measured run missing.json does not exist\n"
    for path, message in (
        ("/dev/zero", "measured run /dev/zero is not a regular file"),
        ("deep.json", "measured run deep.json, line 1, column 101: nested deeper than 100 levels"),
    ):
        Path("deep.json").write_text(100_000 * "[")
        assert main(["explain", "plan.json", "--measured", path]) == 2
        assert capsys.readouterr().err.startswith(f"autoshard: error: {message}")
    assert main(["explain", "plan.json", "--measured", "plan.json"]) == 2
    assert capsys.readouterr().err.startswith("autoshard: error: plan.json is no run.json, which `autoshard run`")
    assert main(["explain", "plan.json", "--measured", run_json(plan)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Measured")
    assert "outside the predicted 90 % interval" in " ".join(printed.split())


# trace


@pytest.mark.parametrize("make", [plan_70b, plan_interleaved, plan_mixtral, plan_one_device])
def test_a_trace_fills_the_step(make: Any) -> None:
    """On every rank actions and bubbles fill the pipeline's time without overlap; parts fill their action."""
    plan: Plan = make()
    total_us = planned_timeline(plan)[1].total_s * 1e6
    by_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in predicted_events(plan):
        by_rank[event["pid"] - PREDICTED_PROCESS].append(event)
    assert set(by_rank) == set(range(plan.strategy.pp))
    for rank, events in by_rank.items():
        spans = [event for event in events if event["ph"] == "X"]
        outer = sorted((e for e in spans if e["cat"] in ("action", "bubble")), key=lambda e: e["ts"])
        assert sum(event["dur"] for event in outer) == pytest.approx(total_us, abs=len(outer))
        ends = [event["ts"] + event["dur"] for event in outer]
        assert all(end <= after["ts"] for end, after in zip(ends, outer[1:], strict=False))
        inner = sum(event["dur"] for event in spans if event["cat"] in ("compute", "communication"))
        assert inner == sum(event["dur"] for event in spans if event["cat"] == "action")
        peak = max(event["args"]["GB"] for event in events if event["ph"] == "C")
        assert peak == pytest.approx(plan.estimate.memory[rank].total_bytes / 1e9, abs=1e-3)


@pytest.mark.parametrize("make", [plan_70b, plan_interleaved, plan_mixtral, plan_one_device])
def test_a_trace_is_as_perfetto_wants_it(make: Any) -> None:
    """Spans of a row nest or do not touch, what holds others comes first; all rows have names; times are whole
    microseconds, which Perfetto reads exactly."""
    events = [*predicted_events(make())]
    required = {"X": {"cat", "ts", "dur", "tid"}, "C": {"ts", "args"}, "M": {"tid", "args"}}
    for event in events:
        assert {"name", "ph", "pid", *required[event["ph"]]} <= event.keys()
        assert all(type(event[time]) is int and event[time] >= 0 for time in ("ts", "dur") if time in event)
    rows = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    for kind in ("process_name", "thread_name", "process_sort_index"):
        named = [(event["pid"], event["tid"]) for event in events if event["name"] == kind]
        assert sorted(named) == sorted(rows)
    assert misplaced(events) == []
    for process in {event["pid"] for event in events}:
        times = [event["ts"] for event in events if event["ph"] == "C" and event["pid"] == process]
        assert times == sorted(times)
        assert len(times) > 1


def misplaced(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Perfetto drops: spans that begin in another one of their row and end behind it."""
    found = []
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    for spans in rows.values():
        open_until: list[int] = []
        for span in sorted(spans, key=lambda one: one["ts"]):  # equal ones as they come
            while open_until and open_until[-1] <= span["ts"]:
                open_until.pop()
            if open_until and span["ts"] + span["dur"] > open_until[-1]:
                found.append(span)
                continue
            open_until.append(span["ts"] + span["dur"])
    return found


def test_a_span_that_reaches_out_of_its_action_is_misplaced() -> None:
    action = {"ph": "X", "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    inside, outside = {**action, "dur": 2}, {**action, "ts": 12, "dur": 4}
    assert misplaced([action, inside, {**action, "ts": 12, "dur": 3}]) == []
    assert misplaced([action, outside]) == [outside]
    assert misplaced([inside, action]) == [action]  # what holds the other must come first


def test_communication_has_its_share() -> None:
    # 40 + 4/3 of 100 + 40 + 4/3 + 4 seconds in actions
    assert communication_share(plan_70b()) == pytest.approx((40 + 4 / 3) / (144 + 4 / 3))
    assert communication_share(plan_one_device()) == pytest.approx(40 / 140)


def test_a_trace_with_a_run_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_interleaved()
    write_plan(plan, "plan.json")
    assert main(["trace", "plan.json", "-o", "out.json", "--measured", run_json(plan)]) == 0
    assert capsys.readouterr().out.endswith(" events for https://ui.perfetto.dev\n")
    events = json.loads(Path("out.json").read_text())["traceEvents"]
    titles = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert titles == {
        "pipeline rank 0, predicted",
        "pipeline rank 1, predicted",
        "rank 0, measured (sums of a step)",
        "rank 1, measured (sums of a step)",
    }
    # with a trace of the run: its own spans
    planned = {**SPAN, "pid": 0}
    Path("trace.json").write_text(json.dumps({"traceEvents": [planned, TITLE, SPAN]}))
    found = measured_events(plan, "run.json")
    assert [event["args"]["name"] for event in found if event["name"] == "process_name"] == ["rank 3 (pp 0), measured"]
    assert [event["ts"] for event in found if event["ph"] == "X"] == [1]
    assert measured_events(plan, "trace.json") == found


def test_a_run_without_a_profile_has_no_trace() -> None:
    plan = plan_interleaved()
    with pytest.raises(AutoshardError, match=r"run.json has no profile and no trace.json beside it"):
        measured_events(plan, run_json(plan, profile=None))


TITLE = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 3, "args": {"name": "rank 3 (pp 0)"}}
SPAN = {"name": "F0.0", "cat": "action", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 3}


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"traceEvents": None},
        {"traceEvents": [1]},
        {"traceEvents": [{"name": "F0.0"}]},
        {"traceEvents": [TITLE, {**TITLE, "tid": "3"}]},
        {"traceEvents": [{**TITLE, "tid": 0.5}]},
        {"traceEvents": [SPAN]},  # of a rank without a title
        {"traceEvents": [TITLE, {**SPAN, "name": {}}]},
        {"traceEvents": [TITLE, {**SPAN, "ts": "1"}]},
        {"traceEvents": [TITLE, {**SPAN, "ts": 1.7e308, "dur": 1.7e308}]},
    ],
)
def test_a_trace_that_is_none(values: Any) -> None:
    Path("trace.json").write_text(json.dumps(values))
    with pytest.raises(AutoshardError, match=r"^trace.json is no trace.json of `autoshard run --profile`$"):
        measured_events(plan_interleaved(), "trace.json")
