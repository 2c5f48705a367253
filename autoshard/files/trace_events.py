"""Events of Chrome's trace format, which https://ui.perfetto.dev shows: processes with rows of spans, and counters.

Times are whole microseconds: of fractions Perfetto keeps less, and then drops a span that reaches out of the one
around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]


def span(process: int, row: int, category: str, name: str, start_s: float, end_s: float) -> Event:
    """A bar from start_s to end_s in a row of a process."""
    start_us, end_us = round(start_s * 1e6), round(end_s * 1e6)
    times = {"ts": start_us, "dur": end_us - start_us}
    return {"name": name, "cat": category, "ph": "X", **times, "pid": process, "tid": row}


def counter(process: int, name: str, at_s: float, values: dict[str, float]) -> Event:
    """The values of a counter of a process from at_s on."""
    return {"name": name, "ph": "C", "ts": round(at_s * 1e6), "pid": process, "args": values}


def process_name(process: int, name: str, row: int = 0) -> Event:
    """The title of a process. row: of any of its rows."""
    return _metadata("process_name", process, row, {"name": name})


def row_name(process: int, row: int, name: str) -> Event:
    """The title of a row of a process."""
    return _metadata("thread_name", process, row, {"name": name})


def process_place(process: int, place: int, row: int = 0) -> Event:
    """The place of a process among the others, from the top. row: of any of its rows."""
    return _metadata("process_sort_index", process, row, {"sort_index": place})


def document(events: Iterable[Event]) -> dict[str, Any]:
    """The content of a trace file, as JSON values."""
    return {"displayTimeUnit": "ms", "traceEvents": [*events]}


def _metadata(kind: str, process: int, row: int, values: dict[str, Any]) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": values}
