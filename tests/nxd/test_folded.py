"""Half a trn2 node is a folded group of tp: what NxD 0.18.0 gets wrong there, shown on it, and that the backend does
not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.nxd.folded_workers import LAYOUTS
from tests.nxd.test_conformance import EXACT, run


@lru_cache
def found() -> Any:
    return run("folded_workers:conformance", {}, 4)


@pytest.mark.parametrize("name", LAYOUTS)
def test_three_steps_equal_one_process(name: str) -> None:
    """On the library and on the torch backend."""
    first = found()[0][name]
    assert first["groups"] == [[0, 3], [1, 2]]
    for ours, folded, expected in zip(first["nxd"], first["torch folded"], first["torch"], strict=True):
        assert ours == pytest.approx(expected, rel=EXACT)
        assert folded == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_weight_is_where_the_plan_has_it(name: str) -> None:
    for what, allowed in (("gradient", 2e-6), ("weight", 1e-3)):
        difference, tensor = max(result[name]["differences"][what] for result in found())
        assert 0 < difference < allowed, (what, tensor)


def test_without_zero_1_the_library_sums_gradients_of_different_shards() -> None:
    """Trap 3; with the plan's groups, as above, it does not."""
    difference, tensor = max(one["nxd"] for one in run("folded_workers:gradients", {}, 4))
    assert difference > 0.1, tensor


def test_save_checkpoint_leaves_out_half_of_the_model_files(tmp_path: Path) -> None:
    """Trap 3: with the library's own groups none of its writers is the second tensor-parallel rank."""
    first = run("folded_workers:saved", {"folder": str(tmp_path)}, 4)[0]
    assert first["nxd"] == ["dp_rank_00_tp_rank_00_pp_rank_00.pt"]
    assert first["mended"] == [f"dp_rank_00_tp_rank_{rank:02d}_pp_rank_00.pt" for rank in (0, 1)]


def test_ranks_of_one_sequence_are_numbered_in_two_orders() -> None:
    """Which is why folded groups with context parallelism are refused."""
    ranks = run("folded_workers:context_ranks", {}, 4)
    assert [(one["told"], one["listed"]) for one in ranks] == [(0, 0), (1, 1), (0, 1), (1, 0)]
