"""Writes a plan's step as a timeline in Chrome's trace format, for https://ui.perfetto.dev; a measured run beside it.

Each pipeline rank is a process. A rank's row holds its actions; each action is split into compute and exposed
communication, in the ratio of the plan's terms. Gaps are shown as bubbles; after the last action come gradient sums and
the update. A counter shows memory. Measured ranks are processes of their own, below the predicted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

from autoshard.cost.values import StageMemory
from autoshard.errors import AutoshardError
from autoshard.explanation.measured import of_this_plan
from autoshard.files.json_file import read_json
from autoshard.files.trace_events import Event, counter, process_name, process_place, row_name, span
from autoshard.plans.measured_run import RankProfile
from autoshard.plans.plan import Plan
from autoshard.plans.timeline import planned_timeline, planned_waits_s
from autoshard.schedules import Order, Timeline
from autoshard.units import GB

COLLECTIVES = ("tensor-parallel collectives", "context-parallel collectives", "expert-parallel collectives")
IN_PIPELINE = ("pipeline bubble", "pipeline transfers")
BEHIND = ("other gradient sums", "gradient reduce-scatter", "optimizer update", "parameter all-gather")
"""Names of terms that come after the pipeline, in their order. Terms that are neither here nor in COLLECTIVES or
IN_PIPELINE are computing."""
KEPT = "kept activations"
BUBBLE = "bubble"
PREDICTED_PROCESS, MEASURED_PROCESS = 1, 10_001
"""First process number of the predicted and of the measured ranks; 0 is the idle process in other tools."""
MAX_TRACE_BYTES = 2_000_000_000


def predicted_events(plan: Plan) -> list[Event]:
    """The events of every pipeline rank for one step, ending when the plan's step does. Titles come first, then events
    by time; a span that holds others comes before them."""
    events = [*_predicted(plan)]
    titles = [event for event in events if event["ph"] == "M"]
    timed = [event for event in events if event["ph"] != "M"]
    return [*titles, *sorted(timed, key=_in_time)]


def _in_time(event: Event) -> tuple[int, int]:
    return event["ts"], -event.get("dur", 0)


def _predicted(plan: Plan) -> Iterator[Event]:
    orders, timeline = planned_timeline(plan)
    share, behind_s = communication_share(plan), seconds_behind(plan)
    for rank, (order, spans) in enumerate(zip(orders, timeline.spans, strict=True)):
        process = PREDICTED_PROCESS + rank
        yield from _titles(process, f"pipeline rank {rank}, predicted")
        yield from _actions(process, order, spans, share)
        yield from _waits(process, spans, timeline)
        yield from _memory(process, plan.estimate.memory[rank], order, spans)
        yield from _behind(process, behind_s, timeline.total_s)


def communication_share(plan: Plan) -> float:
    """Share of the time in actions that is exposed collectives, 0 to 1, on the busiest rank, whose terms the plan
    has."""
    terms = {term.name: term.value for term in plan.estimate.time_terms}
    inside = sum(value for name, value in terms.items() if name not in (*IN_PIPELINE, *BEHIND))
    return sum(terms.get(name, 0.0) for name in COLLECTIVES) / inside if inside else 0.0


def _actions(process: int, order: Order, spans: Sequence[tuple[float, float]], share: float) -> Iterator[Event]:
    for action, (start_s, end_s) in zip(order, spans, strict=True):
        yield _span(process, "action", str(action), start_s, end_s)
        middle_s = end_s - share * (end_s - start_s)
        yield _span(process, "compute", "compute", start_s, middle_s)
        if share:
            yield _span(process, "communication", "exposed communication", middle_s, end_s)


def _waits(process: int, spans: Sequence[tuple[float, float]], timeline: Timeline) -> Iterator[Event]:
    before_s = 0.0
    for start_s, end_s in (*spans, (timeline.total_s, timeline.total_s)):
        if start_s - before_s > 1e-6:
            yield _span(process, BUBBLE, BUBBLE, before_s, start_s)
        before_s = end_s


def _memory(process: int, memory: StageMemory, order: Order, spans: Sequence[tuple[float, float]]) -> Iterator[Event]:
    """The memory counter of a rank: kept activations rise with each forward and fall with its backward. Its peak is the
    plan's memory of that rank."""
    kept = sum(term.value for term in memory.terms if term.name == KEPT)
    held, peak = 0, max(_held(order))
    yield _counter(process, 0.0, memory.total_bytes - kept)
    for action, (start_s, end_s) in zip(order, spans, strict=True):
        held += {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
        at_s = start_s if action.kind == "F" else end_s
        yield _counter(process, at_s, memory.total_bytes - kept * (1 - held / peak))


def _held(order: Order) -> Iterator[int]:
    held = 0
    for action in order:
        held += {"F": 1, "B": -1, "I": -1}.get(action.kind, 0)
        yield held


def seconds_behind(plan: Plan) -> dict[str, float]:
    """Seconds after the pipeline, by term and in order. Under ZeRO-2 and ZeRO-3 the rest of these terms is inside the
    pipeline's actions."""
    terms = {term.name: term.value for term in plan.estimate.time_terms}
    gathering_s, scattering_s = planned_waits_s(plan)
    inside = {"parameter all-gather": gathering_s, "gradient reduce-scatter": scattering_s}
    behind = {name: terms.get(name, 0.0) - inside.get(name, 0.0) for name in BEHIND}
    return {name: max(0.0, seconds) for name, seconds in behind.items()}  # an estimate is rounded, these are not


def _behind(process: int, behind_s: Mapping[str, float], start_s: float) -> Iterator[Event]:
    for name, seconds in behind_s.items():
        if seconds:
            yield _span(process, "optimizer", name, start_s, start_s + seconds)
            start_s += seconds


def measured_events(plan: Plan, path: str) -> list[Event]:
    """The events of a profiled run. path: its trace.json, or its run.json; then the trace.json beside it is taken if
    there is one.

    Raises AutoshardError for a run of another plan, for one that was not profiled, and for files that are something
    else.
    """
    file = Path(path)
    if file.name == "trace.json":
        return _executed(file)
    profile = of_this_plan(plan, path).profile
    beside = file.with_name("trace.json")
    if beside.exists():
        return _executed(beside)
    if profile is None:
        raise AutoshardError(
            f"{path} has no profile and no trace.json beside it; `autoshard run --profile` writes both"
        )
    return [event for one in profile.ranks for event in _averages(one)]


def _averages(one: RankProfile) -> Iterator[Event]:
    """Events of a rank of which only sums are known: one bar after the other."""
    process, start_s = MEASURED_PROCESS + one.rank, 0.0
    yield from _titles(process, f"rank {one.rank}, measured (sums of a step)")
    parts = (
        ("compute", one.actions_s - one.collectives_s),
        ("exposed communication", one.collectives_s),
        (BUBBLE, one.waiting_s),
        ("gradient sums", one.gradient_sync_s),
        ("parameter all-gather", one.parameter_gather_s),
        ("optimizer update", one.update_s),
    )
    for name, seconds in parts:
        yield _span(process, "measured", name, start_s, start_s + seconds)
        start_s += seconds


def _executed(file: Path) -> list[Event]:
    """Events of a run's own trace, each rank as a process."""
    try:
        return _moved(read_json(file, "trace", MAX_TRACE_BYTES))
    except (ValueError, LookupError, TypeError, ArithmeticError):
        raise AutoshardError(f"{file} is no trace.json of `autoshard run --profile`") from None


def _moved(values: Any) -> list[Event]:
    """The executed events of a trace.json, as `runtime/measured.py` writes them. Raises one of several errors of
    Python's for anything else."""
    executed = [event for event in values["traceEvents"] if event["pid"] == 1]
    names = {index(event["tid"]): event["args"]["name"] for event in executed if event["name"] == "thread_name"}
    if not all(isinstance(text, str) for event in executed for text in (event["name"], event.get("cat", ""))):
        raise TypeError("a name that is no text")
    processes = {rank: MEASURED_PROCESS + rank for rank in sorted(names)}
    spans = [
        _span(
            processes[event["tid"]], event["cat"], event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
        )
        for event in executed
        if event["ph"] == "X"
    ]
    titles = [one for rank, process in processes.items() for one in _titles(process, f"{names[rank]}, measured")]
    return [*titles, *sorted(spans, key=_in_time)]


def _span(process: int, category: str, name: str, start_s: float, end_s: float) -> Event:
    """A bar in the only row of a rank's process."""
    return span(process, process, category, name, start_s, end_s)


def _counter(process: int, at_s: float, size: float) -> Event:
    return counter(process, "memory", at_s, {"GB": round(size / GB, 4)})


def _titles(process: int, name: str) -> Iterator[Event]:
    """The events that name a process and its only row, and place it among the others."""
    yield process_name(process, name, process)
    yield row_name(process, process, "step")
    yield process_place(process, process, process)
