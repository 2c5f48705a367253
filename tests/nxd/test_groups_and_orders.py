"""Our process groups and task orders against the library's own, on worlds of any size: none of them is started."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.runtime.nxd_backend.rank_groups import GroupCase, mesh_groups, plan_case, rank_groups
from autoshard.schedules import actions
from tests.nxd.test_conformance import run
from tests.unit.trn2_files import FILES, trn2_plan


def group_cases() -> list[dict[str, Any]]:
    """Each with LOCAL_WORLD_SIZE as a node of the platform has it."""
    found = []
    for platform, lnc, node in (("trn1", 1, 32), ("trn2", 1, 128), ("trn2", 2, 64)):
        for nodes, tp, pp, cp, ep in product((1, 2), (1, 4, 8, 16, 32, 64), (1, 2, 4), (1, 2), (1, 2)):
            if tp * pp * max(cp, ep) <= nodes * node:
                found.append(
                    {"platform": platform, "lnc": lnc, "local_world_size": node, "world_size": nodes * node}
                    | {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
                )
    return found


def test_groups_are_the_librarys() -> None:
    """Folded and strided ones included; what it refuses, ours refuse."""
    cases = group_cases()
    theirs = run("groups_of_the_library", {"cases": cases}, 1)[0]["groups"]
    assert len(cases) > 200
    folded = 0
    for case, groups in zip(cases, theirs, strict=True):
        try:
            ours = rank_groups(GroupCase(**case)).by_name()
        except AutoshardError:
            assert "error" in groups, case
            continue
        assert "error" not in groups, (case, groups)
        mine = {kind: sorted(list(one) for one in found) for kind, found in ours.items()}
        assert mine == {kind: sorted(found) for kind, found in groups.items()}, case
        folded += GroupCase(**case).is_folded
    assert folded


@pytest.mark.parametrize("name", FILES)
def test_groups_of_the_trn2_files_are_the_librarys(name: str, tmp_path: Path) -> None:
    """On the plan's 512 and 64 ranks: its mesh has every group that the library makes, but for those that it mixes."""
    plan = trn2_plan(name, tmp_path)
    asked, strategy = plan_case(plan), plan.strategy
    case = {field: getattr(asked, field) for field in ("platform", "lnc", "local_world_size", "world_size")}
    case |= {"tp": strategy.tp, "pp": strategy.pp, "cp": 1, "ep": 1}
    theirs = run("groups_of_the_library", {"cases": [case]}, 1)[0]["groups"][0]
    assert len(theirs["tp_groups"]) == plan.cluster.world_size // strategy.tp
    same = {
        kind for kind, ours in mesh_groups(plan).by_name().items() if sorted(map(list, ours)) == sorted(theirs[kind])
    }
    assert theirs.keys() - same == ({"ep_data_groups"} if asked.is_folded else set())


def test_orders_are_the_librarys() -> None:
    cases = [
        {"pp": pp, "num_microbatches": number, "vpp": vpp}
        for pp, vpp in product((2, 3, 4, 8), (1, 2, 3, 4))
        for number in (pp, 2 * pp, 4 * pp, *((1, pp - 1, pp + 1) if vpp == 1 else ()))
        if number > 0
    ]
    theirs = run("orders_of_the_library", {"cases": cases}, 1)[0]["orders"]
    for case, orders in zip(cases, theirs, strict=True):
        schedule = "1f1b" if case["vpp"] == 1 else "interleaved"
        ours = actions(schedule, case["pp"], case["num_microbatches"], case["vpp"])
        assert [list(map(str, order)) for order in ours] == orders, case
