"""Priced layouts in the order of their step times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.whole import Priced
from autoshard.planner.ranking import Timed
from autoshard.rows import different

AT_ONCE = 2
"""Layouts that are simulated together."""


def fastest_first(
    priced: list[Priced],
    limit_bytes: float,
    above_bytes: float = 0.0,
    below_s: float = inf,
    such: Callable[[Priced], Array] | None = None,
    takes: Callable[[Priced, int], bool] | None = None,
) -> Iterator[Timed]:
    """Layouts that need no more than the limit, and more than `above_bytes`, and may take less than `below_s`. such:
    by layout, whether it is wanted at all. takes: the same of one layout, (layouts, row), asked when its turn comes.

    Where a step time is a lower bound only, the layout is simulated when its turn comes, and waits until its step time
    has come up.
    """
    fitting = [
        np.flatnonzero(
            (layouts.memory_bytes <= limit_bytes)
            & (layouts.memory_bytes > above_bytes)
            & (layouts.step_time_s < below_s)
            & (True if such is None else such(layouts))
        )
        for layouts in priced
    ]
    if not any(map(len, fitting)):
        return
    chunk = np.repeat(np.arange(len(priced)), [len(rows) for rows in fitting])
    row = np.concatenate(fitting)
    times = np.concatenate([layouts.step_time_s[rows] for layouts, rows in zip(priced, fitting, strict=True)])
    order = np.argsort(times, kind="stable")
    waiting: list[tuple[float, int]] = []

    def timed() -> Timed:
        step_time_s, place = heappop(waiting)
        layouts, layout = priced[chunk[place]], int(row[place])
        return Timed(step_time_s, layouts.strategy(layout), float(layouts.memory_bytes[layout]))

    for begin in range(0, len(order), AT_ONCE):
        places = order[begin : begin + AT_ONCE]
        if takes is not None:
            places = places[[takes(priced[chunk[place]], row[place]) for place in places]]
        exact = _exact_s(priced, chunk[places], row[places], times[places])
        for place, step_time_s, exact_s in zip(places.tolist(), times[places].tolist(), exact.tolist(), strict=True):
            while waiting and waiting[0][0] <= step_time_s:
                yield timed()
            heappush(waiting, (exact_s, place))
    while waiting:
        yield timed()


def _exact_s(priced: list[Priced], chunk: Array, row: Array, times: Array) -> Array:
    """Step times of some layouts, those of one chunk together.

    chunk, row: by layout, its places in `priced`. times: its step time there, or a bound where the chunk says so.
    """
    exact_s = times.copy()
    for place in different(chunk):
        if priced[place].at_least:
            rows = chunk == place
            exact_s[rows] = priced[place].exact_s(row[rows])
    return exact_s
