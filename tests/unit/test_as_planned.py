"""Published results beside what a plan says of their layouts: means by hand, and a row as a plan prices it."""

from __future__ import annotations

from math import log

import pytest

from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.cost.estimate import estimate
from autoshard.spec.cluster import load_cluster
from benchmarks.as_planned import Priced, page, priced
from tests.unit.test_scoreboard import ROW


def test_means_by_hand() -> None:
    found = [Priced("a", log(1.2), True), Priced("a", log(0.8), False), Priced("b", log(1.1), True)]
    text = page(found)
    assert "| a | 2 | 20.0% | 0.98 | 50% |" in text  # the square root of 1.2 x 0.8
    assert "| b | 1 | 10.0% | 1.10 | 100% |" in text
    assert text.endswith("Mean of sources: 15.0%, 75% inside.\n")


def test_a_row_is_priced_as_a_plan_is() -> None:
    case = gpu_case({**ROW, "zero": "1"})
    found, cluster = priced(case), load_cluster("h100-80gb", 1)
    own = estimate(case.model, case.training, cluster, case.strategy)
    assert found is not None and found.log_ratio == pytest.approx(log(own.step_time_s / 1.0))
    assert priced(gpu_case({**ROW, "n_gpus": "4", "dp": "1"})) is None  # half a node
