"""Bounds by round trips between ranks: below the clock, and close to it.

`AUTOSHARD_INSTANCES=5000 python -m pytest -q tests/unit/test_rank_trips.py` tries so many.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from autoshard.planner.grid.rank_trips import apart_round_trips_at_least_s, round_trips_at_least_s
from autoshard.schedules import Work, at_least_s, step_time_s

INSTANCES = int(os.environ.get("AUTOSHARD_INSTANCES", "100"))
BOUNDS = {"1f1b": round_trips_at_least_s, "zero_bubble": apart_round_trips_at_least_s}


def random_work(seed: int) -> Work:
    """Three pipelines of up to eight ranks, alike or not, some with nothing on the last one."""
    choose = np.random.default_rng(seed)
    pp, m, share = int(choose.integers(2, 9)), int(choose.integers(1, 40)), choose.choice([0.2, 1.0])
    forward_s, input_s = (1 - share * choose.uniform(0, 1, (pp, 3)) for _ in range(2))
    weight_s = choose.choice([0.1, 1.0, 1.5]) * choose.uniform(0, 1, (pp, 3))
    if not seed % 5:
        forward_s[-1] = input_s[-1] = weight_s[-1] = 0.0
    hop_s = float(choose.choice([0.0, 0.05, 0.3, 1.5]))
    return Work(pp, np.full(3, m), 1, forward_s, input_s + weight_s, hop_s, weight_s)


@pytest.mark.parametrize("schedule", [*BOUNDS])
@pytest.mark.parametrize("seed", range(INSTANCES))
def test_no_step_is_faster(seed: int, schedule: str) -> None:
    work = random_work(seed)
    pp, m, vpp, *numbers = work
    assert (BOUNDS[schedule](work) <= step_time_s(schedule, pp, m, vpp, *numbers) * (1 + 1e-12)).all()


@pytest.mark.parametrize(("schedule", "within"), [("1f1b", 0.005), ("zero_bubble", 0.015)])
def test_they_are_closer_than_the_closed_form(schedule: str, within: float) -> None:
    gaps = []
    for work in map(random_work, range(200)):
        pp, m, vpp, *numbers = work
        if m[0] <= pp:
            continue
        seconds, closed_s = step_time_s(schedule, pp, m, vpp, *numbers), at_least_s(schedule, work)
        both_s = np.maximum(closed_s, BOUNDS[schedule](work))
        gaps.append([(seconds / bound_s - 1).mean() for bound_s in (both_s, closed_s)])
    close, closed = np.mean(gaps, axis=0)
    assert close < within < closed


def test_two_slow_ranks_in_the_middle() -> None:
    # ranks 1 and 2 of four: a trip of two microbatches takes 2 * 3 s and two transfers of 0.5 s
    work = Work(
        4, np.full(1, 8), 1, np.array([[0.1], [1.0], [1.0], [0.1]]), np.array([[0.2], [2.0], [2.0], [0.2]]), 0.5
    )
    # all stages and back 6.6 + 3 s, rank 1 and behind 6.3 + 2 s; then of 8 - 1 - 3 forwards two trips of 7 s
    assert round_trips_at_least_s(work) == pytest.approx([9.6 + 8.3 + 2 * 7.0])
