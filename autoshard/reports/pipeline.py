"""A pipeline's step as rows of spans, in whole ticks: small enough for a page, exact enough for a zoom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from autoshard.explanation.trace import BUBBLE, seconds_behind
from autoshard.plans.plan import Plan
from autoshard.plans.timeline import planned_timeline
from autoshard.schedules.action import Action

TICKS = 1_000_000
"""Of a step."""
MOST_SPANS = 24_000
"""Of a timeline; each takes some 15 bytes of the page. Of longer ones the middle, where ranks repeat the same actions,
has several of them in one span."""
KINDS = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}
SHOWN = ("action", "optimizer", "measured")
"""Categories of a measured trace that are drawn: not whole steps, and not collectives, which are inside of actions."""
TOGETHER = "several actions as one, their waits behind them"


class Span(NamedTuple):
    """One thing that a rank does. what: in words. microbatch, chunk: -1 where it has none. Times are seconds. parts: of
    several actions, (what, seconds) of each kind among them."""

    what: str
    start_s: float
    end_s: float
    microbatch: int = -1
    chunk: int = -1
    parts: tuple[tuple[str, float], ...] = ()


def predicted_rows(plan: Plan) -> list[tuple[str, list[Span]]]:
    """(name, spans) of each pipeline rank for one step; what is between two spans is the bubble."""
    orders, timeline = planned_timeline(plan)
    behind_s, each = seconds_behind(plan), MOST_SPANS // len(orders) // 4
    rows = []
    for rank, (order, spans) in enumerate(zip(orders, timeline.spans, strict=True)):
        row = _actions(order, spans, each)
        at_s = timeline.total_s
        for name, seconds in behind_s.items():
            if seconds:
                row.append(Span(name, at_s, at_s + seconds))
                at_s += seconds
        rows.append((f"pipeline rank {rank}", row))
    return rows


def _actions(order: Sequence[Action], spans: Sequence[tuple[float, float]], each: int) -> list[Span]:
    """The spans of a rank's actions, at most 4 * each: so many at either end one by one, twice as many for the rest."""
    named = [
        Span(KINDS[action.kind], start_s, end_s, action.microbatch, action.chunk)
        for action, (start_s, end_s) in zip(order, spans, strict=True)
    ]
    if len(named) <= 4 * each:
        return named
    middle = named[each:-each]
    count = ceil(len(middle) / (2 * each))
    together = [_together(middle[first : first + count]) for first in range(0, len(middle), count)]
    return [*named[:each], *together, *named[-each:]]


def _together(actions: Sequence[Span]) -> Span:
    """One span as long as the actions work, so that the bubble behind it is as long as they wait."""
    start_s, parts = actions[0].start_s, _seconds_by_kind(actions)
    return Span(TOGETHER, start_s, start_s + sum(parts.values()), parts=tuple(parts.items()))


def _seconds_by_kind(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds of some spans by what they are, in the order of KINDS, without those that take none."""
    found = dict.fromkeys(KINDS.values(), 0.0)
    for span in spans:
        for what, seconds in span.parts or ((span.what, span.end_s - span.start_s),):
            found[what] += seconds
    return {what: seconds for what, seconds in found.items() if seconds}


def measured_rows(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Span]]]:
    """(name, spans) of each measured rank: its actions, and what comes after them.

    events: of `measured_events`. Spans inside another one are left out, waits, which are what is between two spans, and
    all that come after the first MOST_SPANS.
    """
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    rows: dict[int, list[Span]] = {pid: [] for pid in names}
    timed = [event for event in events if event["ph"] == "X" and event["cat"] in SHOWN][:MOST_SPANS]
    first = min((event["ts"] for event in timed), default=0)
    for event in timed:
        row, start_s = rows[event["pid"]], (event["ts"] - first) / 1e6
        if event["name"] != BUBBLE and (not row or start_s >= row[-1].end_s - 1e-9):
            row.append(_measured(event, start_s))
    return [(names[pid], row) for pid, row in rows.items()]


def _measured(event: Mapping[str, Any], start_s: float) -> Span:
    end_s = start_s + event["dur"] / 1e6
    if event["cat"] != "action":
        return Span(event["name"], start_s, end_s)
    action = Action.parse(event["name"])
    return Span(KINDS[action.kind], start_s, end_s, action.microbatch, action.chunk)


def packed(title: str, rows: Sequence[tuple[str, Sequence[Span]]], at_least_s: float = 0.0) -> dict[str, Any]:
    """Rows as JSON values: {title, total_s, ticks, end, kinds, several, rows: [{name, spans, mix}]}, the spans flat:
    ticks since the end of the one before, ticks that it takes, index of what it is, microbatch, chunk. at_least_s: of
    total_s; end: the tick at which the last span ends. several: the index of TOGETHER, -1 without; mix: (index of a
    kind, its share) of what a row does in such spans."""
    spans = [span for _, row in rows for span in row]
    end_s = max((span.end_s for span in spans), default=0.0)
    total_s = max(at_least_s, end_s)
    scale = TICKS / total_s if total_s else 0.0
    kinds = [*dict.fromkeys(what for span in spans for what in (span.what, *(part for part, _ in span.parts)))]
    number = {name: index for index, name in enumerate(kinds)}
    return {
        "title": title,
        "total_s": total_s,
        "ticks": TICKS,
        "end": round(end_s * scale),
        "kinds": kinds,
        "several": number.get(TOGETHER, -1),
        "rows": [{"name": name, "spans": _flat(row, scale, number), "mix": _mix(row, number)} for name, row in rows],
    }


def _mix(row: Sequence[Span], number: Mapping[str, int]) -> list[tuple[int, float]]:
    found = _seconds_by_kind([span for span in row if span.parts])
    whole_s = sum(found.values())
    return [(number[what], round(seconds / whole_s, 4)) for what, seconds in found.items()]


def _flat(row: Sequence[Span], scale: float, number: Mapping[str, int]) -> list[int]:
    """Each end is rounded by itself, so that errors do not add up."""
    flat, at = list[int](), 0
    for span in row:
        start, end = round(span.start_s * scale), round(span.end_s * scale)
        flat += (start - at, end - start, number[span.what], span.microbatch, span.chunk)
        at = end
    return flat


def bubble_table(rows: Sequence[tuple[str, Sequence[Span]]]) -> list[tuple[str, float, float, float]]:
    """(name, seconds of work, seconds before its first span, seconds that it waits in all) of each row."""
    total_s = max((span.end_s for _, row in rows for span in row), default=0.0)
    found = []
    for name, row in rows:
        busy_s = sum(span.end_s - span.start_s for span in row)
        found.append((name, busy_s, row[0].start_s if row else total_s, total_s - busy_s))
    return found
