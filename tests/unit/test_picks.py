"""The winner's curse: hand-made picks, and worlds where the truth is known."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.calibration.results.picks import (
    EVERYTHING,
    LAYOUTS,
    NOTHING,
    Pick,
    groups_of,
    of_measured_features,
    of_new_features,
    picks,
    surprise,
)
from autoshard.calibration.results.stack_fit import Linearised, predictions
from benchmarks.fitted import DATA, load


def _pick(left_out: str, pick: float, new: int = 1, all_: float = 0.02) -> Pick:
    return Pick(left_out, "s", new, pick, all_)


def test_a_surprise_is_what_the_pick_is_missed_by_more_than_all() -> None:
    assert surprise([_pick(NOTHING, 0.05), _pick(NOTHING, 0.03)]) == pytest.approx(0.02)
    assert surprise([_pick(NOTHING, -0.05)]) == surprise([]) == 0.0


def test_a_feature_counts_by_the_root_of_its_picks_and_only_where_they_have_it() -> None:
    found = [
        _pick(NOTHING, 0.03, new=0),
        _pick("tp > 1", 0.12),
        _pick("tp > 1", 0.12),
        _pick("pp > 1", 0.06),
        _pick("pp > 1", 0.50, new=0),
        _pick(EVERYTHING, 0.90),
    ]
    assert of_measured_features(found) == pytest.approx(0.01)
    assert of_new_features(found) == pytest.approx((2**0.5 * 0.10 + 0.04) / (2**0.5 + 1))
    assert of_new_features(found[:1]) == of_measured_features(found)


def test_the_best_of_many_guesses_is_optimistic_and_the_measure_finds_by_how_much() -> None:
    """A hundred groups of 30 equal layouts, each guessed with its own error of 5 %: the least guess is 10 % too low,
    the mean of the largest of 30 normal errors."""
    random = np.random.default_rng(0)
    errors = random.normal(0, 0.05, (400, 30))  # log(predicted / measured)
    found = [Pick(NOTHING, "s", 0, float(-own.min()), float(-own.mean())) for own in errors]
    assert surprise(found) == pytest.approx(2.04 * 0.05, rel=0.05)
    corrected = [replace(one, pick=one.pick - surprise(found)) for one in found]
    assert np.mean([one.surprise for one in corrected]) == pytest.approx(0, abs=0.02)


def test_in_a_world_that_the_model_describes_fitted_picks_do_not_surprise() -> None:
    """Step times of 60 published layouts as the model computes them: the fit of the others finds them again."""
    with (DATA / "measured_gpu.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source_id"] == "hagemann" and row["status"] == "ok"]
    values = load().values
    cases = [gpu_case(row) for row in rows]
    cases = [case for case in cases if case.group in {one.group for one in cases[::40]}]
    cases = [replace(one, time_s=time_s) for one, time_s in zip(cases, predictions(cases, values), strict=True)]
    found = picks(Linearised(cases, values))
    assert len(groups_of(cases)) == len([one for one in found if one.left_out == NOTHING]) >= 3
    fitted = [abs(one.surprise) for one in found if one.left_out == NOTHING]
    at_priors = [abs(one.surprise) for one in found if one.left_out == EVERYTHING]
    assert np.mean(fitted) < 0.02 and np.mean(fitted) < np.mean(at_priors)


def test_small_groups_have_nothing_to_pick_from() -> None:
    with (DATA / "measured_gpu.csv").open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))
    case = gpu_case(row)
    assert groups_of([case] * (LAYOUTS - 1)) == [] and groups_of([case] * LAYOUTS) == [[*range(LAYOUTS)]]
