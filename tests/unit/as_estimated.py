"""Of a layout that the grid found: the estimate says the same of it."""

import pytest

from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy


def check_as_estimated(problem: Problem, strategy: Strategy, step_time_s: float, limit_bytes: float) -> None:
    """step_time_s: as the grid has it. limit_bytes: of the fullest device."""
    cost = estimate(*problem[:3], strategy)
    assert cost.step_time_s == pytest.approx(step_time_s, rel=1e-12)
    assert cost.fullest.total_bytes <= limit_bytes
