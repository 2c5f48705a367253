"""Makes run.json's values and trace.json of what the ranks of a run returned.

trace.json: Chrome's trace format, for https://ui.perfetto.dev: process 0 is the plan, process 1 the run, a row a rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from operator import attrgetter
from typing import Any

from autoshard.files.trace_events import document, process_name, row_name, span
from autoshard.plans.measured_run import (
    FORMAT_VERSION,
    Compiled,
    MeasuredRun,
    Profile,
    RankMemory,
    RankProfile,
    StepTimes,
)
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import text_digest
from autoshard.plans.timeline import planned_timeline

Result = dict[str, Any]


def measured(plan: Plan, results: Sequence[Result | None]) -> MeasuredRun:
    """The values of run.json. results: what each rank's worker returned, None where a rank's is not known here."""
    known = [(rank, result) for rank, result in enumerate(results) if result is not None]
    trained = known[0][1]["trained"]
    times = step_times(trained)
    compiled = [Compiled(**one) for _, result in known if (one := result["trained"]["compiled"]) is not None]
    return MeasuredRun(
        FORMAT_VERSION,
        text_digest(plan),
        plan.mesh.world_size,
        len(trained["losses"]),
        plan.training.global_batch_size,
        plan.training.sequence_length,
        trained["losses"][0],
        trained["losses"][-1],
        times,
        plan.training.tokens_per_step / times.median,
        max(compiled, key=attrgetter("compile_time_s"), default=None),
        tuple(RankMemory(rank, tuple(result["stages"]), result["peak_memory_bytes"]) for rank, result in known),
        _profile(plan, known) if trained["profile"] is not None else None,
    )


def step_times(trained: Result) -> StepTimes:
    """Seconds of a step, without the first, which warms up, and those watched; of all, where none else is left.

    trained: what train_steps returns.
    """
    times, profiled = trained["step_times_s"], trained["profiled_steps"]
    left = [one for step, one in enumerate(times) if step > 0 and step not in profiled] or times
    return StepTimes(*(percentile(left, share) for share in (0.5, 0.1, 0.9)))


def trace(plan: Plan, results: Sequence[Result | None]) -> dict[str, Any]:
    """trace.json's values: the planned pipeline and, from the first profiled step on, what every known rank did."""
    orders, timeline = planned_timeline(plan)
    events = [process_name(0, "planned"), process_name(1, "executed")]
    for rank in range(plan.strategy.pp):
        events.append(row_name(0, rank, f"pipeline rank {rank}"))
        events += [
            span(0, rank, "action", str(action), start_s, end_s)
            for action, (start_s, end_s) in zip(orders[rank], timeline.spans[rank], strict=True)
        ]
    known = [(rank, result["trained"]["profile"]) for rank, result in enumerate(results) if result is not None]
    zero_s = min(profile["steps"][0][0] for _, profile in known)
    for rank, profile in known:
        pipeline_rank, index = plan.mesh.coordinates(rank)
        place = " ".join([f"pp {pipeline_rank}", *(f"{axis} {position}" for axis, position in index.items())])
        events.append(row_name(1, rank, f"rank {rank} ({place})"))
        for number, (start_s, end_s) in enumerate(profile["steps"]):
            events.append(span(1, rank, "step", f"profiled step {number + 1}", start_s - zero_s, end_s - zero_s))
        events += [  # one that holds others comes before them
            span(1, rank, category, name, start_s - zero_s, end_s - zero_s)
            for category, name, start_s, end_s in sorted(profile["spans"], key=lambda spent: (spent[2], -spent[3]))
        ]
    return document(events)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _profile(plan: Plan, known: list[tuple[int, Result]]) -> Profile:
    ranks = tuple(_rank_profile(rank, result["trained"]["profile"]) for rank, result in known)
    waiting_s = sum(one.waiting_s for one in ranks)
    pipeline_s = sum(_pipeline_s(result["trained"]["profile"]) for _, result in known)
    return Profile(waiting_s / pipeline_s, planned_timeline(plan)[1].bubble_fraction, ranks)


def _pipeline_s(profile: Result) -> float:
    """The pipeline's part of a step, the mean over those profiled: from its start to the start of the optimizer."""
    starts = [spent[2] for spent in profile["spans"] if spent[1] == "optimizer step"]
    steps = profile["steps"]
    return float(sum(start_s - step[0] for start_s, step in zip(starts, steps, strict=True)) / len(steps))


def _rank_profile(rank: int, profile: Result) -> RankProfile:
    """Means over the profiled steps."""
    steps, spans = profile["steps"], profile["spans"]
    actions = sorted((spent[2], spent[3]) for spent in spans if spent[0] == "action")  # one after the other
    starts = [start_s for start_s, _ in actions]

    def is_inside(start_s: float, end_s: float) -> bool:
        begun = bisect_right(starts, start_s)
        return begun > 0 and end_s <= actions[begun - 1][1]

    inside = [spent for spent in spans if is_inside(spent[2], spent[3])]

    def seconds(chosen: Sequence[Any], category: str, *names: str) -> float:
        of_these = [s for s in chosen if s[0] == category and (not names or s[1] in names)]
        return float(sum(end_s - start_s for _, _, start_s, end_s in of_these)) / len(steps)

    sync_s, gather_s = seconds(spans, "optimizer", "gradient sync"), seconds(spans, "optimizer", "parameter gather")
    optimizer_s = seconds(spans, "optimizer", "optimizer step")
    actions_s, in_actions_s = seconds(spans, "action"), seconds(inside, "optimizer")
    return RankProfile(
        rank,
        sum(end_s - start_s for start_s, end_s in steps) / len(steps),
        actions_s - in_actions_s,
        max(0.0, _pipeline_s(profile) - actions_s),
        seconds(inside, "collective"),
        sync_s,
        gather_s,
        optimizer_s - (sync_s + gather_s - in_actions_s),
    )
