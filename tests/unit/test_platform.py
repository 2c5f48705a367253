"""A platform that nobody knows, one record and one hardware file: checked, planned for, written, launched."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.backends.rules import Problem
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.jobs.options import LaunchOptions
from autoshard.jobs.variables import variables
from autoshard.models import load_model
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import plan_from_dict, read_plan
from autoshard.spec.cluster import instances, load_cluster
from autoshard.spec.platform import PLATFORMS
from autoshard.spec.training import TrainingSpec, load_precision
from tests.new_platform import TRN9, hardware_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(PLATFORMS, "trn9", TRN9)
    return hardware_file(tmp_path)


def planned(file: Path, *options: str) -> Plan:
    out = file.parent / "plan.json"
    request = ("--model", "llama3-8b", "--hardware", str(file), "--nodes", "2", "--global-batch", "128", *options)
    assert main(["plan", *request, "--out", str(out)]) == 0
    return read_plan(out)


def test_a_record_is_all_that_a_hardware_file_needs(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError) as caught:
        load_cluster(None, 2, hardware_file=hardware_file(tmp_path))
    assert (
        str(caught.value)
        == "layout_rules='trn9' of cluster trn9.mine must be one of: trn1, trn2, trn3, cuda, cpu, none"
    )


def test_every_packaged_instance_has_a_platform() -> None:
    found = {name: load_cluster(name, 1).platform.name for name in instances()}
    assert {
        name.split(".")[0].split("-")[0].rstrip("nu"): platform
        for name, platform in found.items()
        if platform not in ("cuda", "cpu")
    } == {
        "trn1": "trn1",
        "trn2": "trn2",
        "trn3": "trn3",
    }
    assert all(platform.name == name for name, platform in PLATFORMS.items())


def test_the_record_says_which_cores_join(file: Path) -> None:
    assert load_cluster(None, 2, hardware_file=file).world_size == 64
    assert load_cluster(None, 2, 2, file).world_size == 128
    with pytest.raises(AutoshardError) as caught:
        load_cluster(None, 2, 1, file)
    assert str(caught.value) == "lnc=1 of cluster trn9.mine must be 2 or 4, as its layout_rules=trn9 say"


@pytest.mark.parametrize(("lnc", "degrees"), [(4, {1, 4, 16}), (2, {1, 8})])
def test_search_tries_the_degrees_of_the_record(file: Path, lnc: int, degrees: set[int]) -> None:
    training = TrainingSpec(4096, 128, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster(None, 2, lnc, file), "torch")
    assert {one.drafts[0].tp for one in legal_layouts(problem, Pins(pp=1), Tally())} == degrees


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tp", "8"), "tp=8 is not a group of trn9.mine at lnc 4; degrees that are: 1, 4, 16"),
        (
            ("--attention-kernel", "flash", "--cp", "1", "--seq-len", "2048"),
            "attention_kernel=flash needs sequence_length=2048 to be a multiple of 4096; use plain",
        ),
    ],
)
def test_its_rules_are_told(
    file: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    arguments = ("--model", "llama3-8b", "--hardware", str(file), "--nodes", "2", *options)
    assert main(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_for_it_goes_through_its_file(file: Path) -> None:
    plan = planned(file)
    assert (plan.cluster.layout_rules, plan.cluster.lnc, plan.backend) == ("trn9", 4, "torch")
    assert plan.strategy.tp in TRN9.tp_degrees[4]
    assert plan_from_dict(json.loads(plan_to_json(plan))) == plan
    assert describe(plan).device == "joined NeuronCore"


def key_value_heads_of_group(plan: Plan) -> list[int]:
    """Of each rank of the first tensor-parallel group, in the order of ranks."""
    return [plan.mesh.coordinates(rank)[1]["tp0"] for rank in sorted(plan.mesh.groups(("tp0", "tp1"))[0])]


def test_its_order_of_ranks_is_honoured(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tp=16 is half of 32 devices: rows 0 and 2 of eight devices each. Eight key-value heads are held twice."""
    plan = planned(file, "--tp", "16", "--pp", "1", "--cp", "1")
    assert plan.mesh.groups(("tp1", "tp0"))[0] == [*range(8), *range(16, 24)]
    assert plan.mesh.groups(("tp0",))[0] == [*range(8)]
    assert key_value_heads_of_group(plan) == [*range(8), *range(8)]
    monkeypatch.setitem(PLATFORMS, "trn9", replace(TRN9, kv_heads_innermost=False, torus=None))
    other = replace(plan)
    assert other.mesh.groups(("tp1", "tp0"))[0] == [*range(16)]
    assert other.mesh.groups(("tp0",))[0] == [*range(0, 16, 2)]
    assert key_value_heads_of_group(other) == [rank // 2 for rank in range(16)]


def test_a_launch_sets_its_variables(file: Path) -> None:
    plan = planned(file)
    found = {one.name: one.value for one in variables(plan, LaunchOptions("plan.json"), "cache")}
    assert found["NEURON_LOGICAL_NC_CONFIG"] == "4" and found["NEURON_CC_FLAGS"].endswith("--lnc=4")
    assert found["NEURON_NINE"] == "1" and "MALLOC_ARENA_MAX" not in found
