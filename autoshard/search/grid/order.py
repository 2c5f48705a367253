"""Priced layouts in the order of their step times."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from autoshard.cost.estimate import estimate
from autoshard.layout.sharding import OperatorChoices
from autoshard.search.grid.table import Priced
from autoshard.search.ranking import Timed
from autoshard.search.rules import Problem


def fastest_first(
    problem: Problem,
    priced: list[Priced],
    limit_bytes: float,
    above_bytes: float = 0.0,
    operators: OperatorChoices = (),
) -> Iterator[Timed]:
    """Those that need no more than the limit, and more than `above_bytes`. operators: with which they were priced.

    Where a step time is a lower bound only, the layout is estimated when its turn comes, and waits until its step time
    has come up.
    """
    fitting = [np.flatnonzero((one.memory_bytes <= limit_bytes) & (one.memory_bytes > above_bytes)) for one in priced]
    if not any(map(len, fitting)):
        return
    chunk = np.repeat(np.arange(len(priced)), [len(rows) for rows in fitting])
    row = np.concatenate(fitting)
    times = np.concatenate([one.step_time_s[rows] for one, rows in zip(priced, fitting, strict=True)])
    waiting: list[tuple[float, int, Timed]] = []
    for place in np.argsort(times, kind="stable").tolist():
        one, step_time_s = priced[chunk[place]], float(times[place])
        while waiting and waiting[0][0] <= step_time_s:
            yield heappop(waiting)[2]
        strategy = one.strategy(int(row[place]))
        if not one.at_least:
            yield Timed(step_time_s, strategy)
            continue
        exact_s = estimate(problem.model, problem.training, problem.cluster, strategy, operators=operators).step_time_s
        heappush(waiting, (exact_s, place, Timed(exact_s, strategy)))
    while waiting:
        yield heappop(waiting)[2]
