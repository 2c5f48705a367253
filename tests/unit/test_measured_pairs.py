"""Measured collectives as questions, pairs of results as widths, and the page of targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard.calibration.results.collective_rows import collective_case
from autoshard.calibration.results.differences import pairs, widths
from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.calibration.results.picks import NOTHING, Pick
from autoshard.calibration.results.rows import Unscored
from autoshard.calibration.results.usable import read_results
from autoshard.cost.interval import CHANGES
from benchmarks.cpu_runs import ROWS
from benchmarks.fitted import DATA
from benchmarks.results_page import results_page
from benchmarks.scores import KEYS, Scored
from tests.unit.plan_examples import plan_70b

COLLECTIVE = {
    "op": "all_gather",
    "instance_stated": "2x trn2.48xlarge (EFA, nproc 4/node)",
    "ranks": "8",
    "nodes": "2",
    "lnc": "2",
    "size_bytes": "1024",
    "size_semantics": "per-rank SHARD bytes (output = size*ranks)",
    "time_us": "100",
    "layer": "torch.distributed neuron backend",
}


def test_a_measured_collective() -> None:
    """What is gathered is the shards of all ranks; 4 of them are neighbours in each of 2 nodes."""
    case = collective_case(COLLECTIVE)
    assert (case.cluster.instance, case.payload_bytes, case.framework) == ("trn2.48xlarge", 8192.0, True)
    assert case.time_s == pytest.approx(1e-4)
    assert (case.shape.ranks_per_node, case.shape.nodes, case.shape.senders_per_node) == (4, 2, 4)
    with pytest.raises(Unscored, match="the instance is not stated"):
        collective_case({**COLLECTIVE, "instance_stated": "not stated"})
    with pytest.raises(Unscored, match="op='permute' is none that a plan issues"):
        collective_case({**COLLECTIVE, "op": "permute"})


def test_published_collectives_are_read() -> None:
    found = read_results([], DATA / "trainium_collectives.csv").collectives
    assert found is not None and (len(found.cases), len(found.unused)) == (243, 39)


def test_runs_on_a_calibrated_cpu_are_rows() -> None:
    """Each is a legal question; at least twelve models and layouts, none with more processes than two cores."""
    cases = [gpu_case({**row, "iter_time_s": "1"}) for row in ROWS]
    assert len({case.key for case in cases}) == len(cases) >= 12
    assert {case.strategy.world_size for case in cases} == {1, 2}
    assert all(case.training.precision.name == "fp32" for case in cases)


def test_what_a_change_adds_to_a_ratio() -> None:
    """Two layouts that differ in tp alone are off by 20 %, the others by 5 %: that is what is found."""
    base = gpu_case({**ROWS[8], "iter_time_s": "1"})
    one = replace(base, source="s", strategy=replace(base.strategy, tp=1, sequence_parallel=False))
    two = replace(one, strategy=replace(one.strategy, tp=2))
    cases = [replace(one if index % 2 else two, group=f"g{index // 4}") for index in range(80)]
    noise = [0.05, -0.05, 0.0, 0.0] * 20
    residuals = [(0.0 if index % 2 else 0.2) + off for index, off in enumerate(noise)]
    groups = pairs(cases, residuals)
    assert len(groups) == 20 and all(len(group) == 6 for group in groups)
    found = widths(groups)
    assert set(found) == {"any", *CHANGES}
    assert 0.1 < np.sqrt(found["any"] + found["communication"]) < 0.4
    assert found["communication"] > found["any"] and found["kernel"] == 0


def test_the_page_of_targets() -> None:
    plan = plan_70b()
    row = Scored(
        "r-1", ("trainium", "trainium/trn1"), "g", 2.0, 1.0, 3.0, 1.0, 0.5, None, 1.0, True, plan.cluster, plan.strategy
    )
    empty = dict.fromkeys(KEYS)
    board = {
        "trainium/trn1": {**empty, "rows": 1, "mape": 0.2, "worst_ape": 0.2, "coverage90": 0.9},
        "few": {**empty, "rows": 10, "coverage90": 1.0},
        "many": {**empty, "rows": 100, "coverage90": 1.0},
        "zero-bubble": {**empty, "rows": 36, "coverage90": 1.0},
    }
    picks = [
        Pick(NOTHING, "s", 0, 0.05, 0.03),
        Pick("pp > 1", "s", 1, 0.06, 0.02),
        Pick("ZeRO", "s", 1, 0.01, 0),
    ]
    page = results_page(board, {"unseen/s": {**empty, "mape": 0.1, "rows": 2, "coverage90": 0.5}}, [row], picks)
    assert "| trainium/trn1 | step time | <= 9 % | 20 % | missed |" in page
    assert "| trainium/trn1 | worst step time | <= 30 % | 20 % |  |" in page
    assert "| stacks never measured | step time, mean of 1 | <= 20 % | 10 % |  |" in page
    assert "50% of the rows, 50% as the mean of sources:\n\n* s 50%\n" in page
    assert "* trainium/trn1: 90%\n" in page
    assert "* few: 100%: too few rows to tell (10 rows: 70% to 100%)\n" in page  # 0.9^10 is 35 %
    assert "* many: 100%: missed (100 rows: 85% to 95%)\n" in page
    assert "* zero-bubble: 100%: missed (36 rows: 81% to 97%): its vocabulary is not stated, so nothing" in page
    assert "| nothing | 1 | +5.0 | +3.0 | +2.0 |  |  |  |" in page
    assert "| pp > 1 | 1 | +6.0 | +2.0 | +4.0 | 1 | +4.0 | +2.0 |" in page  # no less than with nothing left out
    assert "All 2 picks with a feature left out: curse +2.5, corrected\n+0.0;" in page
    assert "| r-1 | g | 1.00 s | 2.00 s | +100% |" in page
