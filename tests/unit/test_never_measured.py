"""Intervals of what was never measured, in worlds where the truth is known."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import hypot

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.calibration.results.held_out import unseen_stacks
from autoshard.calibration.results.never_measured import FEW_SOURCES, Missed, measured, missed, unknown, widths
from autoshard.calibration.results.stack_fit import Linearised, predictions
from autoshard.cost.known import (
    DENSE,
    DEVICE,
    EXPERTS,
    HALF,
    MODEL,
    PRECISION,
    UNKNOWN,
    Measured,
    Width,
    measured_by,
    never_measured,
    widened,
)
from benchmarks.fitted import DATA, load
from tests.cases import some
from tests.unit.test_scoreboard import ROW

SPREADS = {DEVICE: 0.2, MODEL: 0.3, PRECISION: 0.0}
SOFTWARE = 0.1
NINETY = 1.6449


def _world(sources: int, seed: int) -> list[Missed]:
    """Sources whose stack is off by one amount, and by more for each thing that is unknown; rows scatter a little."""
    random = np.random.default_rng(seed)
    found = []
    for source in range(sources):
        of_stack = random.normal(0, SOFTWARE)
        for unknown_things in ((), *((name,) for name in UNKNOWN)):
            more = sum(random.normal(0, SPREADS[name]) for name in unknown_things)
            residuals = of_stack + more + random.normal(0, 0.02, 5)
            kind = EXPERTS if MODEL in unknown_things else DENSE
            found += [Missed(str(source), unknown_things, float(one), kind) for one in residuals]
        of_experts = random.normal(0, 2 * SOFTWARE) + random.normal(0, 0.02, 5)
        found += [Missed(str(source), (), float(one), EXPERTS) for one in of_experts]
    return found


def test_widths_are_those_of_the_world() -> None:
    found = widths(_world(400, seed=1), 0.08)
    assert -found.software[DENSE].low == pytest.approx(NINETY * hypot(SOFTWARE, 0.02), rel=0.15)
    assert found.software[DENSE].high == pytest.approx(NINETY * hypot(SOFTWARE, 0.02), rel=0.15)
    assert -found.software[EXPERTS].low == pytest.approx(NINETY * hypot(2 * SOFTWARE, 0.02), rel=0.15)
    for name, spread in SPREADS.items():
        assert -found.widths[name].low == pytest.approx(NINETY * spread, rel=0.15, abs=0.06)
        assert found.widths[name].sources == 400 and found.widths[name].results == 2000
    assert abs(found.expected[DENSE]) < 0.02


@pytest.mark.parametrize(
    ("things", "kind"),
    [((), DENSE), ((), EXPERTS), ((DEVICE,), DENSE), ((MODEL,), EXPERTS)],
    ids=["software", "software, experts", "device", "model"],
)
def test_nine_in_ten_of_new_sources_lie_inside(things: tuple[str, ...], kind: str) -> None:
    """From twelve sources, as there are; many such worlds, each asked about sources that it has not seen."""
    inside = []
    for seed in range(40):
        interval = widths(_world(12, seed), 0.08).of(things, kind)
        asked = [one.residual for one in _world(40, seed + 1000) if (one.unknown, one.kind) == (things, kind)]
        inside.append(np.mean([interval.low <= one <= interval.high for one in asked]))
    assert 0.85 <= np.mean(inside) <= 0.95


def test_few_sources_are_no_surer_than_other_unknown_things() -> None:
    found = widths([one for one in _world(20, seed=3) if one.source in ("1", "2") or one.unknown != (PRECISION,)], 0.08)
    assert found.widths[PRECISION].sources < FEW_SOURCES
    assert found.widths[PRECISION].low <= found.widths[DEVICE].low
    assert found.widths[PRECISION].high >= found.widths[DEVICE].high


def test_mixtures_that_few_sources_have_are_no_surer_than_dense_models() -> None:
    found = widths([one for one in _world(20, seed=3) if one.source in ("1", "2") or one.kind == DENSE], 0.08)
    dense, experts = found.software[DENSE], found.software[EXPERTS]
    assert experts.low <= dense.low and dense.high <= experts.high
    assert found.of((MODEL,), EXPERTS).low == -hypot(dense.low, found.widths[MODEL].low), "what the kind adds"


@given(st.floats(-1, 0), st.floats(0, 1), st.lists(st.tuples(st.floats(-1, 0), st.floats(0, 1)), max_size=3))
def test_what_is_unknown_never_makes_surer(low: float, high: float, added: list[tuple[float, float]]) -> None:
    found = widened(low, high, [Width(a, b, 1, 1) for a, b in added])
    assert found[0] <= low and high <= found[1]
    assert found[0] >= low + sum(a for a, _ in added) - 1e-9 and found[1] <= high + sum(b for _, b in added) + 1e-9


def test_what_was_measured() -> None:
    known = measured_by([("a", "dense", HALF), ("a", EXPERTS, "fp8"), ("b", "dense", HALF)])
    assert known == {"a": Measured(("dense", EXPERTS), ("fp8", HALF)), "b": Measured(("dense",), (HALF,))}
    assert never_measured(known, "a", EXPERTS, "fp8") == ()
    assert never_measured(known, "b", EXPERTS, "fp8") == (MODEL, PRECISION)
    assert never_measured(known, "c", EXPERTS, "fp8") == (DEVICE,)  # known of another device
    assert never_measured(known, "c", EXPERTS, "nvfp4") == (DEVICE, PRECISION)
    assert never_measured({}, "a", "dense", HALF) == UNKNOWN


def test_facts_of_a_row() -> None:
    dense, experts = gpu_case(ROW), gpu_case({**ROW, "moe_experts": "8", "moe_topk": "2", "precision": "fp8"})
    known = measured([dense])
    assert known == {"h100": Measured(("dense",), (HALF,))}
    assert unknown(dense, known) == () and unknown(experts, known) == (MODEL, PRECISION)
    assert unknown(gpu_case({**ROW, "gpu": "A100-80GB-SXM"}), known) == (DEVICE,)
    h200 = gpu_case({**ROW, "gpu": "H200-141GB-SXM", "gpu_mem_gb": "141"})
    assert unknown(h200, known) == (DEVICE,)
    with_fp8 = measured([dense, gpu_case({**ROW, "precision": "fp8"}), h200])  # one family
    assert with_fp8["h200"] == with_fp8["h100"] == Measured(("dense",), ("fp8", HALF))


def test_in_a_world_that_the_model_describes_only_what_is_unknown_is_missed() -> None:
    """Step times are the model's own, so a source is missed by no more than its stack strays from the prior; the
    constants of another device miss more."""
    with (DATA / "measured_gpu.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source_id"] in ("dgxc", "sc21-t1", "korthikanti-t5")]
    many = [row for row in rows if row["source_id"] == "dgxc"]
    rows = [row for row in rows if row not in many or row in some(many, step=12)]
    values = load().values
    cases = [gpu_case(row) for row in rows]
    cases = [replace(one, time_s=time_s) for one, time_s in zip(cases, predictions(cases, values), strict=True)]
    found = missed(Linearised(cases, values), unseen_stacks(cases, values))
    assert {one.source for one in found} == {"dgxc", "sc21-t1", "korthikanti-t5"}
    of_stack = [abs(one.residual) for one in found if not one.unknown]
    of_device = [abs(one.residual) for one in found if one.unknown == (DEVICE,)]
    assert len(of_stack) == 14 and np.mean(of_stack) < 0.05 < np.mean(of_device)
