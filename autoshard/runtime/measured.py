"""run.json, what a run measured, and trace.json, what its profiled steps did beside what the plan had them do.

run.json: format_version; plan_sha256 (of plan.json's text); world_size, steps, global_batch_size, sequence_length;
first_loss, last_loss; step_time_s {median, p10, p90}, of all steps but the first and the profiled ones; tokens_per_s
at the median; compile: null, or of the rank that compiled longest its segments, how many of them are distinct, and
compile_time_s; ranks: rank, stages, peak_memory_bytes; profile: null, or what the profiled steps took on average:
bubble_fraction (share of all ranks' pipeline time in which no action ran), planned_bubble_fraction, and for each rank
step_s, actions_s, waiting_s, collectives_s (inside actions), gradient_sync_s, parameter_gather_s, update_s.
Exposed communication is collectives_s + gradient_sync_s + parameter_gather_s. Times are seconds, sizes bytes.

trace.json: Chrome's trace format, for https://ui.perfetto.dev: process 0 is the plan, process 1 the run, a row a rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import ceil
from typing import Any

from autoshard.files.trace_events import document, process_name, row_name, span
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.timeline import planned_timeline

RUN_FORMAT = 1
Result = dict[str, Any]


def measured(plan: Plan, results: Sequence[Result | None]) -> dict[str, Any]:
    """run.json's values. results: what each rank's worker returned, None where a rank's is not known here."""
    known = [(rank, result) for rank, result in enumerate(results) if result is not None]
    trained = known[0][1]["trained"]
    times = _undisturbed(trained["step_times_s"], trained["profiled_steps"])
    median_s = percentile(times, 0.5)
    return {
        "format_version": RUN_FORMAT,
        "plan_sha256": hashlib.sha256(plan_to_json(plan).encode()).hexdigest(),
        "world_size": plan.mesh.world_size,
        "steps": len(trained["losses"]),
        "global_batch_size": plan.training.global_batch_size,
        "sequence_length": plan.training.sequence_length,
        "first_loss": trained["losses"][0],
        "last_loss": trained["losses"][-1],
        "step_time_s": {"median": median_s, "p10": percentile(times, 0.1), "p90": percentile(times, 0.9)},
        "tokens_per_s": plan.training.tokens_per_step / median_s,
        "compile": max((result["trained"]["compiled"] for _, result in known), key=_compile_time_s),
        "ranks": [
            {"rank": rank, "stages": result["stages"], "peak_memory_bytes": result["peak_memory_bytes"]}
            for rank, result in known
        ],
        "profile": _profile(plan, known) if trained["profile"] is not None else None,
    }


def _compile_time_s(compiled: Result | None) -> float:
    return 0.0 if compiled is None else float(compiled["compile_time_s"])


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


def _undisturbed(times: Sequence[float], profiled: Sequence[int]) -> list[float]:
    """Without the first step, which warms up, and those that were watched; all, where nothing else is left."""
    return [one for step, one in enumerate(times) if step > 0 and step not in profiled] or list(times)


def _profile(plan: Plan, known: list[tuple[int, Result]]) -> dict[str, Any]:
    ranks = [{"rank": rank, **_rank_profile(result["trained"]["profile"])} for rank, result in known]
    pipeline_s = sum(one["actions_s"] + one["waiting_s"] for one in ranks)
    return {
        "bubble_fraction": sum(one["waiting_s"] for one in ranks) / pipeline_s,
        "planned_bubble_fraction": planned_timeline(plan)[1].bubble_fraction,
        "ranks": ranks,
    }


def _rank_profile(profile: Result) -> dict[str, float]:
    """Means over the profiled steps."""
    steps, spans = profile["steps"], profile["spans"]

    def total_s(chosen: Sequence[Any]) -> float:
        return float(sum(end_s - start_s for _, _, start_s, end_s in chosen))

    def seconds(category: str, *names: str) -> float:
        chosen = [s for s in spans if s[0] == category and (not names or s[1] in names)]
        return total_s(chosen) / len(steps)

    actions_ = [spent for spent in spans if spent[0] == "action"]
    inside = [
        spent
        for spent in spans
        if spent[0] == "collective" and any(action[2] <= spent[2] and spent[3] <= action[3] for action in actions_)
    ]
    actions_s = seconds("action")
    # The pipeline's part of a step: from its start to the start of the optimizer.
    starts = [spent[2] for spent in spans if spent[1] == "optimizer step"]
    pipeline_s = sum(start_s - step[0] for start_s, step in zip(starts, steps, strict=True)) / len(steps)
    sync_s, gather_s = seconds("optimizer", "gradient sync"), seconds("optimizer", "parameter gather")
    return {
        "step_s": sum(end_s - start_s for start_s, end_s in steps) / len(steps),
        "actions_s": actions_s,
        "waiting_s": max(0.0, pipeline_s - actions_s),
        "collectives_s": total_s(inside) / len(steps),
        "gradient_sync_s": sync_s,
        "parameter_gather_s": gather_s,
        "update_s": seconds("optimizer", "optimizer step") - sync_s - gather_s,
    }
