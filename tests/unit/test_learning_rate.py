"""Learning rates by hand."""

from __future__ import annotations

from math import cos, pi

import pytest

from autoshard.runtime.learning_rate import SCHEDULES, learning_rate


def rates(schedule: str, steps: int, warmup_steps: int) -> list[float]:
    return [learning_rate(schedule, step, steps, 1.0, warmup_steps) for step in range(steps)]


def test_warm_up_rises_in_equal_steps_to_the_peak() -> None:
    for schedule in SCHEDULES:
        assert rates(schedule, 8, 3)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_three_ways_on() -> None:
    assert rates("constant", 4, 0) == [1.0] * 4
    assert rates("linear", 4, 0) == [1.0, 0.75, 0.5, 0.25]
    assert rates("cosine", 4, 0) == pytest.approx([(1 + cos(pi * step / 4)) / 2 for step in range(4)])


def test_a_run_that_is_all_warm_up() -> None:
    for schedule in SCHEDULES:
        assert rates(schedule, 2, 5) == pytest.approx([1 / 6, 2 / 6])
