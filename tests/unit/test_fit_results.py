"""Fits to training results: they find the constants that made them, stay at priors without any, and are written."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log

import numpy as np
import pytest

from autoshard.calibration.calibration import Leaf, evidence, leaf_entry, set_fitted
from autoshard.calibration.results.fit_file import hardware_content
from autoshard.calibration.results.instance_fit import PUBLISHED, Problem, fit
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.calibration.results.published import fitted_to, left_out_of_published
from autoshard.calibration.results.usable import read_results
from autoshard.spec.hardware_file import FOLDER
from benchmarks.fitted import DATA
from tests.cases import some

TRN1 = "trn1.32xlarge"
CONSTANTS = PUBLISHED[TRN1]
CONTENT = hardware_content(FOLDER / f"{TRN1}.json")


@pytest.fixture(scope="module")
def cases() -> list[InstanceCase]:
    found = read_results([DATA / "measured_trainium.csv"], None).instances
    assert found is not None
    return some((case for case in found.cases if fitted_to(case)), step=3)


def test_it_finds_the_constants_that_made_the_results(cases: list[InstanceCase]) -> None:
    """On the line between the priors and those constants: the priors pull, the more the less the results tell."""
    free = {leaf: replace(constant, spread=max(constant.spread, 0.1)) for leaf, constant in CONSTANTS.items()}
    free["pass_launch_s",] = replace(CONSTANTS["pass_launch_s",], spread=0.5)
    problem = Problem(cases, free, CONTENT)
    true = np.log([0.7, 0.6, 0.02, 0.2, 0.3])
    made = Problem([replace(case, time_s=problem.predicted_s(case, true)) for case in cases], free, CONTENT)
    at = fit(made)
    off = np.abs(made.residuals(at))
    assert off.max() < 0.04 < 0.1 < np.abs(made.residuals(problem.prior.at)).max()
    assert at[2] == pytest.approx(log(0.02), abs=0.3)


def test_without_results_the_priors_stay(cases: list[InstanceCase]) -> None:
    problem = Problem(cases, CONSTANTS, CONTENT)
    nothing = np.zeros(len(problem.cases))
    at = problem.prior.at
    now = problem.residuals(at)
    assert problem.solve(at, now, problem.slope(at, now), nothing) == pytest.approx(at)


def test_layouts_that_were_left_out(cases: list[InstanceCase]) -> None:
    errors = [abs(one / case.time_s - 1) for case, one in zip(cases, left_out_of_published(cases, cases), strict=True)]
    assert sum(errors) / len(errors) < 0.09 and max(errors) < 0.30


def test_a_hardware_file_takes_a_fit() -> None:
    """With its source and evidence, in place of an older fit's; what else it says stays."""
    content, before = (json.loads(json.dumps(CONTENT)) for _ in range(2))
    values: dict[Leaf, tuple[float, str]] = {("pass_launch_s",): (0.5, "a pass"), ("matmul_k0",): (3.0, "a product")}
    of = evidence(values, "measured_trainium.csv", 64 * "0", 2, ([0.1, 0.2, 0.6], None))
    set_fitted(content, values, of)
    calibration = content["calibration"]
    assert leaf_entry(calibration, ("pass_launch_s",)) == {
        "value": 0.5,
        "source": "fitted to measured_trainium.csv; a pass",
    }
    assert (of.points, of.groups, of.mean_error, of.worst_error, of.left_out_error) == (3, 2, 0.3, 0.6, None)
    fitted = [name for one in calibration["fits"] for name in one["constants"]]
    assert len(fitted) == len(set(fitted)) and {"pass_launch_s", "matmul_k0"} < set(fitted)
    for one in (content, before):
        del one["calibration"]["fits"], one["calibration"]["pass_launch_s"], one["calibration"]["matmul_k0"]
    assert content == before
