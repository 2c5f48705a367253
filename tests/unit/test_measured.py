"""run.json and trace.json from what ranks return."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autoshard.plans.measured_run import Compiled, RankMemory, StepTimes, read_measured_run, write_measured_run
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.timeline import planned_timeline
from autoshard.runtime.measured import measured, percentile, trace
from autoshard.runtime.report import run_summary
from autoshard.schedules import actions
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

COMPILED = {"segments": 9, "distinct": 3, "functions": 1, "operators": 40}
PLAN = plan_of(MODELS["llama"], strategy(pp=2), 2)


def result(rank: int, profile: dict[str, Any] | None, compiled: bool = False) -> dict[str, Any]:
    return {
        "stages": [rank],
        "peak_memory_bytes": 1000 + rank,
        "trained": {
            "losses": [5.0, 4.5, 4.25, 4.0],
            "step_times_s": [9.0, 2.0, 7.0, 1.0],
            "profiled_steps": [2] if profile else [],
            "profile": profile,
            "compiled": {**COMPILED, "compile_time_s": 20.0 + rank} if compiled else None,
            "held_out_losses": [],
        },
    }


def profile(start_s: float) -> dict[str, Any]:
    """A step of 10 s: F of 2 s with a collective of 0.5 s, B of 3 s, then 1 s of sync and 2 s more of the optimizer."""
    spans = [
        ("action", "F0.0", 1.0, 3.0),
        ("collective", "all_reduce", 1.5, 2.0),
        ("action", "B0.0", 4.0, 7.0),
        ("optimizer", "gradient sync", 7.0, 8.0),
        ("collective", "reduce_scatter_tensor", 7.0, 8.0),
        ("optimizer", "parameter gather", 9.5, 9.75),
        ("optimizer", "optimizer step", 7.0, 10.0),
    ]
    moved = [(category, name, start_s + a, start_s + b) for category, name, a, b in spans]
    return {"steps": [(start_s, start_s + 10.0)], "spans": moved}


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(10, 0, -1)]
    assert [percentile(values, share) for share in (0.1, 0.5, 0.9, 1.0)] == [1, 5, 9, 10]
    assert percentile([3.0], 0.1) == percentile([3.0], 0.9) == 3.0


def test_a_run_without_a_profile() -> None:
    found = measured(PLAN, [result(0, None), result(1, None)])
    assert found.plan_sha256 == hashlib.sha256(plan_to_json(PLAN).encode()).hexdigest()
    assert found.step_time_s == StepTimes(median=2.0, p10=1.0, p90=7.0)  # the first step warms up
    assert found.tokens_per_s == 2 * 16 / 2.0
    assert (found.first_loss, found.last_loss, found.steps) == (5.0, 4.0, 4)
    assert found.ranks[1] == RankMemory(rank=1, stages=(1,), peak_memory_bytes=1001)
    assert found.profile is None
    assert found.compile is None


@pytest.mark.parametrize("profiled", [False, True])
def test_what_is_written_is_read(profiled: bool, tmp_path: Path) -> None:
    results = [result(rank, profile(100.0) if profiled else None, compiled=not profiled) for rank in range(2)]
    run = measured(PLAN, results)
    write_measured_run(run, tmp_path / "run.json")
    assert read_measured_run(tmp_path / "run.json") == run


def test_of_what_was_compiled_the_slowest_rank_is_told() -> None:
    found = measured(PLAN, [result(0, None, True), result(1, None, True)])
    assert found.compile == Compiled(**COMPILED, compile_time_s=21.0)


def test_what_a_profiled_step_took() -> None:
    found = measured(PLAN, [result(0, profile(100.0)), None])
    assert found.step_time_s == StepTimes(median=1.0, p10=1.0, p90=2.0)  # nor does a watched step count
    assert found.profile is not None
    (rank,) = found.profile.ranks
    assert asdict(rank) == pytest.approx(
        {
            "rank": 0,
            "step_s": 10,
            "actions_s": 5,
            "waiting_s": 2,
            "collectives_s": 0.5,
            "gradient_sync_s": 1,
            "parameter_gather_s": 0.25,
            "update_s": 1.75,
        }
    )
    assert found.profile.bubble_fraction == pytest.approx(2 / 7)
    assert found.profile.planned_bubble_fraction == planned_timeline(PLAN)[1].bubble_fraction


def test_what_zero_3_sends_inside_an_action_is_no_part_of_it() -> None:
    watched = profile(100.0)
    watched["spans"] += [
        ("optimizer", "parameter gather", 101.0, 101.25),
        ("optimizer", "gradient sync", 106.0, 107.0),
    ]
    found = measured(PLAN, [result(0, watched), None]).profile
    assert found is not None
    (rank,) = found.ranks
    assert (rank.actions_s, rank.waiting_s, rank.collectives_s) == pytest.approx((3.75, 2, 0.5))
    assert (rank.gradient_sync_s, rank.parameter_gather_s, rank.update_s) == pytest.approx((2, 0.5, 1.75))
    assert found.bubble_fraction == pytest.approx(2 / 7)


def test_a_span_is_looked_for_among_actions_not_held_against_each() -> None:
    """A rank of a large plan has thousands of actions and a hundred thousand collectives in three steps."""

    class Second(float):
        compared = 0

        def __lt__(self, other: float) -> bool:
            Second.compared += 1
            return float(self) < other

        def __le__(self, other: float) -> bool:
            Second.compared += 1
            return float(self) <= other

    count = 500
    spans: list[tuple[str, str, float, float]] = [("optimizer", "optimizer step", count, count + 1.0)]
    for one in range(count):
        spans.append(("action", f"F{one}.0", Second(one), Second(one + 0.75)))
        spans.append(("collective", "all_reduce", Second(one + 0.25), Second(one + 0.5)))
        spans.append(("collective", "send", Second(one + 0.75), Second(one + 1.0)))
    found = measured(PLAN, [result(0, {"steps": [(0.0, count + 1.0)], "spans": spans}), None]).profile
    assert found is not None and found.ranks[0].collectives_s == count * 0.25
    assert Second.compared < 3 * count * 20  # 20: twice the logarithm of 500, and some


def test_what_is_printed_is_what_is_written() -> None:
    of_rank = result(0, profile(100.0))
    run = measured(PLAN, [of_rank])
    assert (run.step_time_s.median, run.tokens_per_s) == (1.0, 32.0)
    assert "\nstep time 1.00 s (planned ~" in (printed := run_summary(PLAN, [of_rank]))
    assert printed.startswith("loss 5.0000 -> 4.0000 in 4 steps\n")
    assert "), 32 tokens/s\n" in printed


def test_a_run_of_one_step_is_said_in_as_few_digits_as_a_long_one() -> None:
    of_rank = result(0, None)
    of_rank["trained"] |= {"losses": [5.0], "step_times_s": [0.15]}
    printed = run_summary(PLAN, [of_rank])
    assert printed.startswith("loss 5.0000 -> 5.0000 in 1 step\n")
    assert "), 213 tokens/s\n" in printed


def test_the_trace_has_planned_and_executed_actions_side_by_side() -> None:
    events = trace(PLAN, [result(0, profile(100.0)), result(1, profile(100.5))])["traceEvents"]
    names = {(one["pid"], one["tid"], one["args"]["name"]) for one in events if one["name"] == "thread_name"}
    assert (0, 1, "pipeline rank 1") in names
    assert (1, 1, "rank 1 (pp 1 dp 0 cp 0 tp 0)") in names
    spans = [one for one in events if one["ph"] == "X"]
    planned = [one["name"] for one in spans if one["pid"] == 0 and one["tid"] == 1]
    assert planned == [str(action) for action in actions("1f1b", 2, 2)[1]]
    second = next(one for one in spans if one["pid"] == 1 and one["tid"] == 1 and one["name"] == "F0.0")
    assert (second["ts"], second["dur"], second["cat"]) == (1.5e6, 2e6, "action")  # 0.5 s after rank 0 began
