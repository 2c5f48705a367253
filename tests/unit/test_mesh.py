"""Ranks, axes and groups of the logical mesh."""

from hypothesis import given
from hypothesis import strategies as st

from autoshard.layout.mesh import Axis, Mesh, build_mesh
from autoshard.layout.strategy import even_stage_layers

DEGREES = st.sampled_from([1, 2, 3, 4])


def test_tensor_parallel_neighbours_are_consecutive_ranks() -> None:
    mesh = build_mesh(tp=4, pp=2, dp=2, cp=1, ep=1, num_key_value_heads=8)
    assert mesh.groups(["tp"]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert mesh.groups(["dp"])[:2] == [[0, 4], [1, 5]]
    assert mesh.groups(["pp"])[:2] == [[0, 8], [1, 9]]


def test_kv_replication_splits_tp_in_nxds_order() -> None:
    # tp=32 over 8 KV heads on trn1: rank r holds KV block r % 8
    trn1 = build_mesh(tp=32, pp=1, dp=1, cp=1, ep=1, num_key_value_heads=8)
    assert trn1.axes[-2:] == (Axis("tp1", 4), Axis("tp0", 8))
    assert [trn1.coordinates(rank)[1]["tp0"] for rank in (0, 1, 8, 31)] == [0, 1, 0, 7]
    # trn2: r // multiplier
    trn2 = build_mesh(tp=32, pp=1, dp=1, cp=1, ep=1, num_key_value_heads=8, kv_inner=False)
    assert [trn2.coordinates(rank)[1]["tp0"] for rank in (0, 1, 4, 31)] == [0, 0, 1, 7]


def test_experts_are_carved_out_of_data_parallel() -> None:
    mesh = build_mesh(tp=2, pp=1, dp=4, cp=1, ep=2, num_key_value_heads=8)
    assert [(axis.name, axis.size) for axis in mesh.axes] == [("dp", 2), ("ep", 2), ("cp", 1), ("tp", 2)]
    assert mesh.groups(["ep"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups(["dp", "ep"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@given(pp=DEGREES, dp=DEGREES, cp=DEGREES, tp=DEGREES)
def test_rank_and_coordinates_are_inverse(pp: int, dp: int, cp: int, tp: int) -> None:
    mesh = Mesh(pp, (Axis("dp", dp), Axis("cp", cp), Axis("tp", tp)))
    for rank in range(mesh.world_size):
        stage, index = mesh.coordinates(rank)
        assert mesh.rank(stage, index) == rank


@given(pp=DEGREES, dp=DEGREES, tp=DEGREES, names=st.sets(st.sampled_from(["pp", "dp", "tp"]), min_size=1))
def test_groups_divide_the_world(pp: int, dp: int, tp: int, names: set[str]) -> None:
    mesh = Mesh(pp, (Axis("dp", dp), Axis("tp", tp)))
    groups = mesh.groups(names)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    assert {len(group) for group in groups} == {mesh.size(names) * (pp if "pp" in names else 1)}


@given(layers=st.integers(1, 200), stages=st.integers(1, 32))
def test_even_stages_differ_by_one_block_at_most(layers: int, stages: int) -> None:
    cut = even_stage_layers(layers, stages)
    assert sum(cut) == layers
    assert max(cut) - min(cut) <= 1


def test_the_remainder_stays_away_from_both_ends() -> None:
    assert even_stage_layers(10, 4) == (2, 3, 3, 2)
