"""Ranks, axes and groups of the logical mesh."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.layout.mesh import (
    AXIS_ORDER,
    Axis,
    Mesh,
    build_mesh,
    experts_objection,
    parse_axis_order,
    replicas_objection,
)
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
    assert [(axis.name, axis.size) for axis in mesh.axes] == [("dp", 2), ("cp", 1), ("ep", 2), ("tp", 2)]
    assert mesh.groups(["ep"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups(["dp", "ep"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_experts_are_carved_out_of_context_parallel_first() -> None:
    """As NxD has them: the ranks of one set of experts are neighbours along dp x cp."""
    whole = build_mesh(tp=2, pp=1, dp=2, cp=2, ep=2, num_key_value_heads=8)
    assert [(axis.name, axis.size) for axis in whole.axes] == [("dp", 2), ("cp", 2), ("tp", 2)]
    assert whole.groups(["cp", "ep"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    both = build_mesh(tp=1, pp=1, dp=4, cp=2, ep=4, num_key_value_heads=8)
    assert [(axis.name, axis.size) for axis in both.axes] == [("dp", 2), ("cp", 2), ("ep", 2), ("tp", 1)]
    assert both.groups(["cp", "ep"]) == [[0, 2, 1, 3], [4, 6, 5, 7]]  # of the experts cp has the larger pieces
    assert both.groups(["cp"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_experts_are_carved_out_of_the_ranks_of_tp_that_do_not_cut_them() -> None:
    mesh = build_mesh(tp=4, pp=1, dp=4, cp=1, ep=4, num_key_value_heads=8, etp=2)
    assert [(axis.name, axis.size) for axis in mesh.axes] == [("dp", 2), ("cp", 1), ("tp", 2), ("etp", 2), ("ep", 2)]
    assert mesh.groups(["etp"])[:2] == [[0, 1], [4, 5]]
    assert mesh.groups(["tp", "ep"])[:2] == [[0, 4, 2, 6], [1, 5, 3, 7]]
    assert sorted(mesh.groups(["tp", "etp"])) == build_mesh(4, 1, 4, 1, 1, 8).groups(["tp"])


def test_parts_of_tp_that_cut_experts_are_parts_of_key_value_heads_or_of_their_copies() -> None:
    def axes(tp: int, heads: int, kv_inner: bool, etp: int) -> list[tuple[str, int]]:
        mesh = build_mesh(tp, 1, 1, 1, tp // etp, heads, kv_inner, etp=etp)
        return [(axis.name, axis.size) for axis in mesh.axes[2:]]

    assert axes(8, 4, True, 2) == [("tp1", 2), ("tp0", 2), ("etp0", 2)]
    assert axes(8, 4, True, 4) == [("tp1", 2), ("etp0", 4)]
    assert axes(16, 4, True, 8) == [("tp1", 2), ("etp1", 2), ("etp0", 4)]
    assert axes(8, 2, False, 2) == [("tp0", 2), ("tp1", 2), ("etp1", 2)]
    assert axes(8, 4, False, 4) == [("tp0", 2), ("etp0", 2), ("etp1", 2)]
    assert axes(8, 4, True, 1) == [("tp1", 2), ("tp0", 4)]
    with pytest.raises(AutoshardError, match=r"^etp=6 cuts tp=12 = 3 x 4 \(key-value heads and their copies\) across$"):
        axes(12, 4, True, 6)


def test_ranks_that_see_the_same_sequences_share_all_experts() -> None:
    why = "experts are spread over the ranks that see the same sequences, and then over replicas"
    found = experts_objection(2, dp=64, cp=1, apart=4)
    assert found == f"ep=2 must be a multiple of tp/etp=4 that divides dp x tp/etp=256: {why}"
    found = experts_objection(4, dp=16, cp=2, apart=4)
    assert found == f"ep=4 must be a multiple of cp x tp/etp=8 that divides dp x cp x tp/etp=128: {why}"
    assert experts_objection(8, dp=2, cp=1, apart=4) is None
    found = replicas_objection(2, 8, dp=2, cp=1, apart=4)
    assert found == "dp_replicate=2 leaves no ranks of dp=2 to shard over; use zero=0 or fewer replicas"
    found = replicas_objection(2, 16, dp=4, cp=1, apart=4)
    assert found == "ep=16 must lie inside the 8 ranks that shard, which dp_replicate=2 leaves"


@given(etp=DEGREES, apart=DEGREES, cp=DEGREES, replicas=DEGREES, left=DEGREES, pp=DEGREES)
def test_groups_of_experts_are_megatron_cores(etp: int, apart: int, cp: int, replicas: int, left: int, pp: int) -> None:
    """Its ranks of a stage count through etp, ep and the rest of dp, the first one fastest (RankGenerator)."""
    tp, dp, ep = etp * apart, replicas * left, cp * apart * replicas
    mesh = build_mesh(tp, pp, dp, cp, ep, num_key_value_heads=tp, etp=etp)
    world = range(pp * dp * cp * tp)

    def along(stride: int, size: int) -> set[frozenset[int]]:
        places = dict[tuple[int, int], set[int]]()
        for rank in world:
            places.setdefault((rank // (stride * size), rank % stride), set()).add(rank)
        return {frozenset(group) for group in places.values()}

    def groups(*names: str) -> set[frozenset[int]]:
        return {frozenset(group) for group in mesh.groups(names)}

    assert groups("etp") == along(1, etp)
    assert groups("cp", "tp", "ep") == along(etp, ep)
    assert groups("dp") == along(etp * ep, left)
    assert groups("tp", "etp") == along(1, tp)
    assert tp * cp * dp == etp * ep * left


def test_replicas_of_shards_lie_outside_of_the_ranks_that_shard() -> None:
    mesh = build_mesh(tp=2, pp=1, dp=4, cp=1, ep=1, num_key_value_heads=8, dp_replicate=2)
    assert [(axis.name, axis.size) for axis in mesh.axes] == [("dp_replicate", 2), ("dp", 2), ("cp", 1), ("tp", 2)]
    assert mesh.groups(["dp"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups(["dp_replicate"]) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    with_experts = build_mesh(tp=1, pp=1, dp=8, cp=1, ep=2, num_key_value_heads=8, dp_replicate=2)
    assert with_experts.groups(["dp", "ep"]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert with_experts.groups(["dp_replicate", "dp"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert build_mesh(2, 1, 4, 1, 1, 8, dp_replicate=1) == build_mesh(2, 1, 4, 1, 1, 8)


def test_an_axis_that_is_moved_inside_has_neighbouring_ranks() -> None:
    # ranks count through dp, then cp, then tp, then the 2 pipeline ranks: stage 0 has the even ones
    mesh = build_mesh(tp=2, pp=2, dp=2, cp=2, ep=1, num_key_value_heads=8, order=("dp", "cp", "tp", "pp"))
    assert mesh.groups(["pp"])[:2] == [[0, 1], [2, 3]]
    assert mesh.groups(["tp"])[:2] == [[0, 2], [4, 6]]
    assert mesh.groups(["dp"])[:2] == [[0, 8], [2, 10]]
    assert mesh.coordinates(13) == (1, {"dp": 1, "cp": 1, "tp": 0})
    assert [axis.name for axis in mesh.axes] == ["dp", "cp", "tp"]  # of a dim, cp still holds the larger pieces


def test_members_of_a_group_come_as_pieces_of_a_dim_do() -> None:
    # tp outside cp: ranks 0 1 | 2 3 are tp 0 | tp 1; a sequence is cut over cp first
    mesh = build_mesh(tp=2, pp=1, dp=1, cp=2, ep=1, num_key_value_heads=8, order=("pp", "dp", "tp", "cp"))
    assert mesh.groups(["cp", "tp"]) == [[0, 2, 1, 3]]


def test_experts_stay_the_inner_part_of_data_parallel() -> None:
    mesh = build_mesh(tp=1, pp=2, dp=4, cp=1, ep=2, num_key_value_heads=8, order=("dp", "pp", "cp", "tp"))
    assert mesh.groups(["ep"]) == [[0, 2], [4, 6], [1, 3], [5, 7]]


def test_what_is_no_order_is_told() -> None:
    wants = "must name each of pp, dp, cp, tp once, outermost first, such as pp-dp-cp-tp"
    for text in ("pp-dp-tp", "pp-dp-cp-tp-ep", "pp-pp-cp-tp", "tp cp dp pp"):
        with pytest.raises(AutoshardError) as caught:
            parse_axis_order(text)
        assert str(caught.value) == f"axis_order={text} {wants}"


ORDERS = st.permutations(AXIS_ORDER).map(tuple)


@given(pp=DEGREES, dp=DEGREES, ep=DEGREES, cp=DEGREES, tp=DEGREES, kv_heads=st.sampled_from([1, 2, 8]), order=ORDERS)
def test_rank_and_coordinates_are_inverse(
    pp: int, dp: int, ep: int, cp: int, tp: int, kv_heads: int, order: tuple[str, ...]
) -> None:
    mesh = build_mesh(tp - tp % min(tp, kv_heads) or 1, pp, dp * ep, cp, ep, kv_heads, True, order)
    places = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
    assert [mesh.rank(*place) for place in places] == [*range(mesh.world_size)]
    every = [(mesh.pp, "pp"), *((axis.size, axis.name) for axis in mesh.axes)]
    wanted = {tuple(one) for one in product(*(range(size) for size, _ in every))}
    assert {(stage, *index.values()) for stage, index in places} == wanted


@given(
    pp=DEGREES, dp=DEGREES, cp=DEGREES, tp=DEGREES, order=ORDERS,
    names=st.sets(st.sampled_from(["pp", "dp", "cp", "tp"]), min_size=1),
)  # fmt: skip
def test_groups_divide_the_world_and_differ_along_their_axes_alone(
    pp: int, dp: int, cp: int, tp: int, order: tuple[str, ...], names: set[str]
) -> None:
    mesh = Mesh(pp, (Axis("dp", dp), Axis("cp", cp), Axis("tp", tp)), order)
    groups = mesh.groups(names)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    assert {len(group) for group in groups} == {mesh.size(names) * (pp if "pp" in names else 1)}
    for group in groups:
        places = [{"pp": stage, **index} for stage, index in map(mesh.coordinates, group)]
        assert all(len({place[name] for place in places}) == 1 for name in {"pp", "dp", "cp", "tp"} - names)
        inside = [tuple(place[name] for name in ("pp", "dp", "cp", "tp")) for place in places]
        assert inside == sorted(inside)


@given(layers=st.integers(1, 200), stages=st.integers(1, 32))
def test_even_stages_differ_by_one_block_at_most(layers: int, stages: int) -> None:
    cut = even_stage_layers(layers, stages)
    assert sum(cut) == layers
    assert max(cut) - min(cut) <= 1


def test_the_remainder_stays_away_from_both_ends() -> None:
    assert even_stage_layers(10, 4) == (2, 3, 3, 2)


def test_a_rank_s_own_group_is_the_one_of_all_that_has_it() -> None:
    for order in (AXIS_ORDER, tuple(reversed(AXIS_ORDER))):
        mesh = replace(build_mesh(tp=2, pp=2, dp=4, cp=2, ep=2, num_key_value_heads=2), order=order)
        names = ["pp", *(axis.name for axis in mesh.axes)]
        for axes in ([], *([name] for name in names), names[:2], names[1:3], names):
            for rank in range(mesh.world_size):
                assert list(mesh.group(rank, axes)) in [one for one in mesh.groups(axes) if rank in one]
