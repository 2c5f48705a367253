"""The fit of trn1's constants: it finds those that made results, stays at its priors without any, and is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from autoshard.spec.hardware_file import FOLDER
from benchmarks.fit_trainium import CONSTANTS, FILES, Problem, fit, left_out_predictions, read, shipped, write


def test_it_finds_the_constants_that_made_the_results() -> None:
    """On the line between the priors and those constants: the priors pull, the more the less the results tell."""
    cases = read()
    problem = Problem(cases)
    true = np.log([0.7, 0.6, 0.02, 0.2, 0.3])
    made = [replace(case, time_s=problem.predicted_s(case, true)) for case in cases]
    at = fit(Problem(made))
    off = np.abs(Problem(made).residuals(at))
    assert off.max() < 0.04 < 0.1 < np.abs(Problem(made).residuals(problem.prior)).max()
    assert at[2] == pytest.approx(log(0.02), abs=0.3)


def test_without_results_the_priors_stay() -> None:
    problem = Problem(read())
    nothing = np.zeros(len(problem.cases))
    now = problem.residuals(problem.prior)
    found = problem.solve(problem.prior, now, problem.slope(problem.prior, now), nothing)
    assert found == pytest.approx(problem.prior)


def test_the_hardware_files_take_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its source; both instance types have the same chips. What else they say stays."""
    before = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in FILES}
    for name in FILES:
        shutil.copy(FOLDER / f"{name}.json", tmp_path)
    monkeypatch.setattr("benchmarks.fit_trainium.FOLDER", tmp_path)
    values = {leaf: 0.0125 * (1 + place) for place, leaf in enumerate(CONSTANTS)}
    write(values, "fitted today")
    for name in FILES:
        assert shipped(name) == pytest.approx(values, rel=0.01)
        content = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert content["calibration"]["matmul_efficiency"]["source"].startswith("fitted today; share of the peak")
        for one in (content, before[name]):
            one["calibration"]["about"] = ""
            for leaf in CONSTANTS:
                entry = one["calibration"]
                for key in leaf[:-1]:
                    entry = entry[key]
                del entry[leaf[-1]]
        assert content == before[name]


def test_layouts_that_were_left_out() -> None:
    cases = read()
    errors = [abs(seconds / case.time_s - 1) for case, seconds in zip(cases, left_out_predictions(cases), strict=True)]
    assert sum(errors) / len(errors) < 0.15 and max(errors) < 0.30
