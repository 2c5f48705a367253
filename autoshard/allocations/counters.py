"""A rank's memory by kind as counters for https://ui.perfetto.dev, beside the actions of its step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from autoshard.allocations.blocks import KINDS, RankMemory, held_levels
from autoshard.files.trace_events import Event, counter, process_name, row_name, span
from autoshard.units import GB

PROCESS = 1


def counter_events(memory: RankMemory, times_s: Sequence[float]) -> list[Event]:
    """The events: a row of actions, and one counter whose series are the kinds, in GB. times_s: of each event."""
    titles = [process_name(PROCESS, f"rank {memory.rank}, planned"), row_name(PROCESS, 0, "step")]
    return [*titles, *sorted([*_actions(memory, times_s), *_counters(memory, times_s)], key=lambda one: one["ts"])]


def _actions(memory: RankMemory, times_s: Sequence[float]) -> Iterator[Event]:
    ends = [*((one.text, one.event) for one in memory.actions), ("", memory.events)]
    for (text, start), (_, stop) in pairwise(ends):
        if start <= memory.events:
            yield span(PROCESS, 0, "action", text, times_s[start], times_s[stop])


def _counters(memory: RankMemory, times_s: Sequence[float]) -> Iterator[Event]:
    levels = {kind: held_levels((one for one in memory.blocks if one.kind == kind), memory.events) for kind in KINDS}
    last: dict[str, float] = {}
    for event in range(memory.events + 1):
        values = {kind: round(levels[kind][event] / GB, 4) for kind in KINDS if any(levels[kind])}
        if values != last:
            yield counter(PROCESS, "memory, GB", times_s[event], values)
        last = values
