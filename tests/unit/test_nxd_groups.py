"""Process groups equal those that neuronx-distributed wrote itself, and the plan's mesh has the same."""

from __future__ import annotations

import copy
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends.rules import Draft, Problem, divisors, first_broken, mesh_rules
from autoshard.errors import AutoshardError
from autoshard.layout.mesh import AXIS_ORDER, TENSOR_PARALLEL_AXES, build_mesh
from autoshard.models.registry import load_model
from autoshard.runtime.nxd_backend.rank_groups import GroupCase, mesh_groups, plan_case, rank_groups
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.nxd_conformance import group_differences, main
from tests.unit.plan_examples import plan_70b

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "nxd_rank_groups.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_groups_equal_those_of_nxd(case: dict[str, Any]) -> None:
    assert group_differences(case) == []


def test_trn1_tp4_is_strided() -> None:
    groups = rank_groups(GroupCase(64, tp=4, platform="trn1", local_world_size=32))
    assert groups.tp_groups[:2] == ((0, 8, 16, 24), (1, 9, 17, 25))
    assert groups.dp_groups[0] == (*range(8), *range(32, 40))


def test_trn2_lnc2_tp32_is_folded() -> None:
    groups = rank_groups(GroupCase(64, tp=32, platform="trn2", lnc=2, local_world_size=64))
    assert groups.tp_groups == ((*range(16), *range(48, 64)), tuple(range(16, 48)))
    # on fewer than 64 cores NxD falls back to consecutive ranks
    assert rank_groups(GroupCase(32, tp=32, platform="trn2", lnc=2)).tp_groups == (tuple(range(32)),)


def test_degrees_beyond_the_world_are_clamped() -> None:
    assert rank_groups(GroupCase(8, tp=32)) == rank_groups(GroupCase(8, tp=8))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ({"world_size": 12, "tp": 8}, "tp=8 x pp=1 x cp=1 is 8 ranks, which must divide the world of 12"),
        ({"world_size": 8, "tp": 2, "ep": 3}, "tp=2 x pp=1 x ep=3 is 6 ranks, which must divide the world of 8"),
        ({"world_size": 0}, "world_size=0 must be a whole number of at least 1"),
        ({"world_size": 8, "platform": "gpu"}, "platform='gpu' is not one of: trn1, trn2, trn3, inf2"),
        (
            {"world_size": 32, "tp": 4, "pp": 2, "platform": "trn1", "local_world_size": 32},
            "tp=4 on trn1 puts 8 groups into a node, so dp=4 must be a multiple of 8",
        ),
        (
            {"world_size": 64, "tp": 4, "ep": 2, "platform": "trn1", "local_world_size": 32},
            "ep=2 with tp=4 on trn1 is not implemented in NxD",
        ),
        (
            {"world_size": 96, "tp": 32, "platform": "trn2", "lnc": 2, "local_world_size": 64},
            (
                "tp=32 at lnc 2 on trn2 is folded over nodes of 32 or 64 ranks that fill the world of 96; "
                "local_world_size=64 does not"
            ),
        ),
    ],
)
def test_what_nxd_refuses_is_refused(case: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        rank_groups(GroupCase(**case))
    assert str(error.value) == text


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))
def test_every_rank_is_in_one_group_of_each_kind(tp: int, pp: int, cp: int, dp: int) -> None:
    for groups in rank_groups(GroupCase(tp * pp * cp * dp, tp=tp, pp=pp, cp=cp)).by_name().values():
        assert sorted(rank for group in groups for rank in group) == list(range(tp * pp * cp * dp))


@pytest.mark.parametrize(
    ("model", "instance", "nodes", "lnc"),
    [
        ("llama3-8b", "trn1.32xlarge", 2, 1),
        ("mixtral-8x7b", "trn1.32xlarge", 4, 1),
        ("llama3-8b", "trn2.48xlarge", 2, 2),
        ("mixtral-8x7b", "trn2.48xlarge", 1, 1),
        ("llama3-70b", "trn2.48xlarge", 2, 1),
    ],
)
def test_our_mesh_has_nxds_groups_wherever_the_planner_goes(model: str, instance: str, nodes: int, lnc: int) -> None:
    """Every layout that the rules of the nxd backend let through; but for the groups that it mends."""
    cluster, spec = load_cluster(instance, nodes, lnc), load_model(model)
    problem = Problem(spec, TrainingSpec(8192, 1024, load_precision("mixed_precision")), cluster, "nxd")
    seen = 0
    degrees = divisors(cluster.world_size)
    for tp, pp, cp, ep in product(degrees, degrees, degrees, (1, 2, 4, 8)):
        dp, rest = divmod(cluster.world_size, tp * pp * cp)
        if rest or dp % ep or first_broken(mesh_rules("nxd"), problem, Draft(tp, pp, dp, cp, ep)):
            continue
        seen += 1
        kv_inner, fold = cluster.platform.kv_heads_innermost, cluster.fold(tp)
        mesh = build_mesh(tp, pp, dp, cp, ep, spec.num_key_value_heads, kv_inner, AXIS_ORDER, fold)
        case = GroupCase(cluster.world_size, tp, pp, cp, ep, cluster.platform.name, lnc, cluster.devices_per_node)
        assert case.is_folded == (fold is not None)
        nxd = rank_groups(case).by_name()
        for kind, axes in {
            "tp_groups": TENSOR_PARALLEL_AXES,
            "dp_groups": ("dp", "ep"),
            "pp_groups": ("pp",),
            "cp_groups": ("cp",),
            "ep_model_groups": ("ep",),
            "ep_data_groups": ("dp", "cp"),
        }.items():
            same = sorted(nxd[kind]) == sorted(map(tuple, mesh.groups(axes)))
            assert same or (kind == "ep_data_groups" and case.is_folded), (tp, pp, dp, cp, ep, kind)
    assert seen >= 10


def test_a_plans_groups() -> None:
    plan = plan_70b()
    assert plan_case(plan) == GroupCase(512, 32, 8, 1, 1, "trn1", 1, 32)
    nxd, ours = rank_groups(plan_case(plan)).by_name(), mesh_groups(plan).by_name()
    assert {kind: sorted(groups) for kind, groups in nxd.items()} == {k: sorted(v) for k, v in ours.items()}


def test_the_command_prints_how_many_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--groups", str(GOLDEN / "nxd_rank_groups.json"), "--schedules", str(GOLDEN / "nxd_schedules.json")]
    assert main(files) == 0
    assert capsys.readouterr().out == "groups: 10 of 10 equal\nschedules: 8 of 8 equal\n"


def test_the_command_names_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = copy.deepcopy(CASES[:2])
    changed[1]["groups"]["tp_groups"][1] = [3, 2]
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps(changed))
    orders = tmp_path / "orders.json"
    case = {"pp": 2, "num_microbatches": 1, "vpp": 1, "schedule": "1f1b", "order": [["F0.0", "B0.0"], ["B0.0", "F0.0"]]}
    orders.write_text(json.dumps([case, {"pp": 2, "num_microbatches": 2, "vpp": 2, "error": "no"}]))
    assert main(["--groups", str(groups), "--schedules", str(orders)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "groups 1 (world=8 tp=2 pp=2): tp_groups: at 1 NxD has (3, 2), ours (2, 3)",
        "groups: 1 of 2 equal",
        "schedules 0 (pp=2 num_microbatches=1 vpp=1 schedule=1f1b): rank 1: at 0 NxD has B0.0, ours F0.0",
        "schedules 1 (pp=2 num_microbatches=2 vpp=2): NxD refuses (no), ours does not",
        "schedules: 0 of 2 equal",
    ]


def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text('[{"case": {"world": 8}}]')
    assert main(["--groups", str(file)]) == 2
    assert capsys.readouterr().err == f"nxd_conformance: error: groups {file}: case 0 has no groups and no error\n"
