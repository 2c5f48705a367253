"""Releases of the Neuron SDK: a factor on every time, apart for stacks, found by a walk over releases."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.calibration.results.effects import LAYOUT_SPREAD, RELEASE_SPREAD, ROW_SPREAD, effects_of, steps_of
from autoshard.calibration.results.instance_rows import InstanceCase, instance_case, row_doubt, row_sdk, row_stack
from autoshard.calibration.results.rows import Unscored, read_rows
from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import release_note
from autoshard.errors import AutoshardError
from autoshard.explanation.answers import price_row
from autoshard.planner.cached_search import Searches
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.spec.cluster import load_cluster
from autoshard.spec.sdk import (
    NEWEST,
    NEWEST_WITH_NXD,
    RELEASES,
    release,
    release_slowdown,
    release_spread,
    stack_slowdown,
)
from benchmarks.fitted import DATA
from tests.unit.plan_examples import plan_70b

ROWS = {row["id"]: row for row in read_rows(DATA / "measured_trainium.csv")}


def test_a_release_slows_everything_by_its_factor() -> None:
    case = instance_case({**ROWS["T135"], "sdk": ""})
    newest = estimate(case.model, case.training, case.cluster, case.strategy).step_time_s
    for sdk in ("2.4", "2.16", "2.20"):
        cluster = load_cluster("trn1.32xlarge", 16, sdk=sdk)
        slower = estimate(case.model, case.training, cluster, case.strategy).step_time_s
        assert slower == pytest.approx(release_slowdown("trn1", sdk) * newest, rel=1e-9)
    assert load_cluster("trn1.32xlarge", 16) == load_cluster("trn1.32xlarge", 16, sdk=NEWEST_WITH_NXD)
    assert release_slowdown("trn1", "2.4") > 1.25 and 1.02 < release_slowdown("trn1", "2.13") < 1.12


def test_gradients_that_are_scattered_as_they_come_are_nowhere_whole() -> None:
    """AXLearn's 7B on trn2: a thousandth of a quarter of its gradients on a rank, not 3.3 GB of them."""
    case = instance_case(ROWS["F001"])
    found = estimate(case.model, case.training, case.cluster, case.strategy, case.software)
    held = {term.name: term.value for term in found.fullest.terms}
    assert held["gradients"] < 0.1e9 and found.fullest.total_bytes < 5e9


def test_a_release_that_nobody_measured_is_less_sure() -> None:
    """2.19 lies between its neighbours; after the newest with results nothing changes but how sure it is."""
    before, after = (release_slowdown("trn1", sdk) for sdk in ("2.18", "2.20"))
    assert min(before, after) <= release_slowdown("trn1", "2.19") <= max(before, after)
    spreads = [release_spread("trn1", sdk) for sdk in RELEASES[RELEASES.index("2.24") :]]
    assert spreads == sorted(spreads) and spreads[0] < 0.5 * spreads[-1]
    assert release_slowdown("trn1", NEWEST) == release_slowdown("trn1", "2.24") == 1.0
    assert release_slowdown("trn2", "2.21") == 1.0, "no two releases were compared on trn2"


@pytest.mark.parametrize(
    ("given", "found"), [("2.20", "2.20"), ("2.20.1", "2.20"), ("2.4", "2.4"), (NEWEST, NEWEST), ("2.13.0", "2.13")]
)
def test_names_of_releases(given: str, found: str) -> None:
    assert release(given) == found


@pytest.mark.parametrize("given", ["2.99", "3.0", "latest", "2", "", "2.3", "2.20.1.4", None])
def test_a_release_that_nobody_knows(given: object) -> None:
    with pytest.raises(
        AutoshardError, match=r"^sdk=.* is no release of the Neuron SDK that is known; known: 2\.4, 2\.5"
    ):
        release(given)


def test_a_number_is_no_release() -> None:
    with pytest.raises(AutoshardError, match=r"^sdk=2\.2 is a number, in which 2\.2 and 2\.20 are one; write the "):
        release(2.20)


def test_plans_hold_the_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    plan = ["plan", "--model", "llama2-7b", "--nodes", "1", "--tp", "8", "-o", str(file)]
    assert main([*plan, "--sdk", "2.99"]) == 2
    assert "2.99" in capsys.readouterr().err and not file.exists()
    assert main([*plan, "--instance", "h100-80gb", "--sdk", "2.20"]) == 2
    assert "sdk='2.20' but h100-80gb does not run the Neuron SDK; leave sdk out" in capsys.readouterr().err
    assert main([*plan, "--sdk", "2.13", "--verbose"]) == 0
    assert "Neuron SDK 2.13: a step takes 1.07 times as long as under 2.24" in capsys.readouterr().out
    values = json.loads(file.read_text(encoding="utf-8"))
    assert values["inputs"]["cluster"]["sdk"] == "2.13"
    assert main(["validate", str(file)]) == 0
    del values["inputs"]["cluster"]["sdk"]
    values["format_version"] = 1
    del values["sha256"]
    file.write_text(json.dumps(values), encoding="utf-8")
    assert main(["validate", str(file)]) == 0, "plans of before name no release"


def test_a_plan_is_for_the_newest_release_with_its_backend() -> None:
    pins: dict[str, Any] = {"tp": 4, "pp": 1}

    def sdk_of(instance: str, **given: Any) -> str | None:
        return plan_for(PlanRequest("llama3-8b", instance, 1, top=0, pins=pins, **given)).cluster.sdk

    assert [sdk_of("trn2.48xlarge", backend=one) for one in ("nxd", "torch")] == [NEWEST_WITH_NXD, NEWEST]
    assert sdk_of("trn3-gen1") == NEWEST and sdk_of("trn2.48xlarge") == NEWEST_WITH_NXD
    assert sdk_of("trn2.48xlarge", backend="torch", sdk="2.32") == "2.32"
    assert load_cluster("trn1.32xlarge", 1).sdk == NEWEST_WITH_NXD
    no_layers = plan_for(PlanRequest("gemma3-1b", "trn2.48xlarge", 1, top=0, pins={"tp": 1, "pp": 1}))
    assert (no_layers.backend, no_layers.cluster.sdk) == ("torch", NEWEST)


def test_no_price_is_told_of_an_instance_that_the_release_does_not_run_on() -> None:
    plan = replace(plan_70b(), cluster=load_cluster("trn1.32xlarge", 16, sdk="2.20"))
    assert price_row(Searches(), plan, "trn2.48xlarge", 0.9) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--instance", "trn2.48xlarge", "--sdk", "2.4"],
            "sdk=2.4 does not run on trn2.48xlarge: the first release that does is 2.21",
        ),
        (
            ["--instance", "trn3-gen1", "--sdk", "2.4"],
            "sdk=2.4 does not run on trn3-gen1: the first release that does is 2.21",
        ),
        *(
            (
                ["--instance", "trn2.48xlarge", "--backend", "torch", "--sdk", sdk],
                f"sdk={sdk} has no native PyTorch on Neuron, which backend torch needs: it is there from 2.31 on",
            )
            for sdk in ("2.22", NEWEST_WITH_NXD)
        ),
    ],
)
def test_a_release_runs_on_the_instance_and_has_the_backend(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", "llama3-8b", *options]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {text}\n"


def test_a_release_widens_the_interval() -> None:
    case = instance_case(ROWS["T135"])
    widths = []
    for sdk in ("2.18", NEWEST):
        found = estimate(case.model, case.training, load_cluster("trn1.32xlarge", 16, sdk=sdk), case.strategy)
        widths.append(log(found.step_time_high_s / found.step_time_s))
    assert widths[0] < widths[1]
    assert release_note(load_cluster("trn2.48xlarge", 1)) is None


def cases(*ids: str) -> list[InstanceCase]:
    return [instance_case(ROWS[name]) for name in ids]


def test_steps_of_the_walk() -> None:
    assert np.nonzero(steps_of("2.4", "2.6"))[0].tolist() == [0, 1]
    assert steps_of("2.6", "2.4") == pytest.approx(-steps_of("2.4", "2.6"))
    assert not steps_of("2.6", "2.6").any()


def test_the_walk_by_hand() -> None:
    """Two rows of one layout, a release apart, 10 % different: the step takes the share that priors leave it."""
    one, two = (replace(case, sdk=sdk) for case, sdk in zip(cases("T135", "T149"), ("2.16", "2.17"), strict=True))
    effects = effects_of([one, two])
    assert effects.newest == "2.17" and effects.stacks == ()
    assert effects.columns.sum(axis=1).tolist() == [2, 1], "a step and the group, the group alone"
    strength = np.diag(1 / effects.spread**2) + effects.columns.T @ effects.columns / ROW_SPREAD**2
    found = np.linalg.solve(strength, effects.columns.T @ np.array([0.1, 0.0]) / ROW_SPREAD**2)
    step, group = found[RELEASES.index("2.16")], found[-1]
    row, walk, layout = ROW_SPREAD**2, RELEASE_SPREAD**2, LAYOUT_SPREAD**2
    covariance = np.array([[row + walk + layout, layout], [layout, row + layout]])
    weights = np.linalg.solve(covariance, [0.1, 0.0])
    assert step == pytest.approx(walk * weights[0]) and group == pytest.approx(layout * weights.sum())
    content = effects.content(found, np.linalg.inv(strength))
    assert content["releases"]["2.16"]["slowdown"] == pytest.approx(exp(step), abs=1e-4)
    assert content["releases"]["2.17"]["slowdown"] == 1.0
    assert content["releases"]["2.15"]["slowdown"] == content["releases"]["2.16"]["slowdown"]


def test_rows_say_stack_release_and_doubt() -> None:
    assert [row_stack(ROWS[name]) for name in ("T102", "T135", "F024", "F001", "F006")] == [
        "neuronx-nemo-megatron",
        "neuronx-distributed",
        "megatron-lm",
        "axlearn",
        "optimum-neuron",
    ]
    assert [row_sdk(ROWS[name]) for name in ("T102", "F026", "F037", "F001", "T214")] == [
        "2.13",
        "2.4",
        "2.10",
        None,
        None,
    ]
    assert not row_doubt(ROWS["T102"]) and row_doubt(ROWS["F019"]).startswith("suspect: with the recompute")
    for name in ("F040", "F041", "F042", "T216", "T220"):
        assert row_doubt(ROWS[name]).startswith("its layout is not all stated (config_complete=")
    assert stack_slowdown("trn1", "neuronx-nemo-megatron") > 1.05
    assert stack_slowdown("trn1", "a stack that nobody compared") == 1.0


def test_rows_that_train_adapters_freeze_the_weights() -> None:
    case = instance_case(ROWS["F011"])
    assert case.software.adapts and not case.doubt and not case.is_whole
    assert instance_case(ROWS["F006"]).is_whole and not instance_case(ROWS["F006"]).software.adapts
    with pytest.raises(Unscored, match=r"^LoRA of neuronx-distributed: only that of optimum-neuron was measured$"):
        instance_case({**ROWS["T135"], "model": "Llama2-7B LoRA"})
