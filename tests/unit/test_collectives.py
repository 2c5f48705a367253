"""What collectives cost: where groups sit, cases worked by hand, and laws."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.collectives import KINDS, GroupShape, collective_law, collective_time_s, ends_shape, group_shape
from autoshard.spec.cluster import Cluster, Link, instances, load_cluster
from autoshard.units import GB, MB

# 4 devices a node, 2 a chip: 100 GB/s in a chip, 40 GB/s in a node, two adapters of 10 GB/s each; 1, 1 and 10 us a hop
TOY = replace(
    load_cluster("cpu", 4),
    devices_per_node=4,
    devices_per_chip=2,
    intra_node=((2, Link("chip", 100 * GB, 1e-6)), (4, Link("node", 40 * GB, 1e-6))),
    adapters_per_node=2,
    inter_node=Link("adapter", 10 * GB, 10e-6),
    collective_launch_s=0.0,
    all_to_all_efficiency=0.5,
)
Mesh = tuple[tuple[str, int], ...]


def nodes_of(devices: int) -> Cluster:
    """The toy with nodes of another size."""
    return replace(TOY, devices_per_node=devices, devices_per_chip=1, intra_node=((devices, TOY.intra_node[-1][1]),))


def shape(mesh: Mesh, *axes: str, devices_per_node: int = 4) -> GroupShape:
    return group_shape(mesh, axes, nodes_of(devices_per_node))


def toy_s(kind: str, payload_bytes: float, mesh: Mesh, *axes: str) -> float:
    return collective_time_s(kind, payload_bytes, shape(mesh, *axes), TOY)


def test_trn1_tp32_is_one_node_and_dp_goes_over_nodes() -> None:
    mesh = (("pp", 4), ("dp", 4), ("cp", 1), ("tp", 32))
    assert shape(mesh, "tp", devices_per_node=32) == GroupShape(32, 32, 1, 1, 32, 32)
    assert shape(mesh, "dp", devices_per_node=32) == GroupShape(4, 1, 4, 32, 1, 32)
    assert shape(mesh, "cp", "dp", devices_per_node=32) == shape(mesh, "dp", devices_per_node=32)
    assert shape(mesh, "cp", devices_per_node=32).size == 1
    assert shape(mesh, "pp", devices_per_node=32) == GroupShape(4, 1, 4, 128, 1, 32)


def test_trn1_tp8_leaves_four_dp_ranks_in_a_node() -> None:
    mesh = (("pp", 1), ("dp", 64), ("tp", 8))
    assert shape(mesh, "tp", devices_per_node=32) == GroupShape(8, 8, 1, 1, 8, 32)
    assert shape(mesh, "dp", devices_per_node=32) == GroupShape(64, 4, 16, 8, 25, 32)
    assert shape(mesh, "dp", "tp", devices_per_node=32) == GroupShape(512, 32, 16, 1, 32, 32)


def test_a_mesh_smaller_than_a_node_has_fewer_senders() -> None:
    assert shape((("dp", 2),), "dp") == GroupShape(2, 2, 1, 1, 2, 2)


def test_groups_that_straddle_nodes_take_the_worst_place() -> None:
    # ranks 0-2, 3-5, ...: the second group has rank 3 in node 0 and ranks 4 and 5 in node 1
    assert shape((("dp", 4), ("tp", 3)), "tp") == GroupShape(3, 3, 2, 1, 3, 4, fewest_per_node=1)


def test_a_member_that_is_alone_in_its_node_waits_for_the_network() -> None:
    """Of 3 ranks of which 2 share a node, the third brings in 2/3 of the payload over its own adapter, 5 GB/s, and in
    an all-to-all sends as much."""
    mesh = (("dp", 4), ("tp", 3))
    in_node_s = 2 / 3 * GB / 40e9
    assert toy_s("all_gather", GB, mesh, "tp") == pytest.approx(2 / 3 * GB / 5e9 + in_node_s, rel=1e-3)
    exchanged_s = toy_s("all_to_all", GB, mesh, "tp")
    apart_s = toy_s("all_to_all", GB, (("tp", 3), ("dp", 4)), "tp")  # each in a node of its own
    assert exchanged_s > apart_s == pytest.approx(2 / 3 * GB / 5e9, rel=1e-3)


def counted(mesh: Mesh, axes: tuple[str, ...], devices_per_node: int) -> tuple[int, int, int, int, int]:
    """size, ranks per node, nodes, span, fewest per node: read off the ranks of every group."""
    places = list(product(*(range(size) for _, size in mesh)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        key = tuple(index for index, (name, _) in zip(place, mesh, strict=True) if name not in axes)
        groups.setdefault(key, []).append(rank)
    per_node, nodes, span, fewest = 1, 1, 1, len(places)
    for ranks in groups.values():
        by_node = [[rank for rank in ranks if rank // devices_per_node == node] for node in range(len(places))]
        used = [members for members in by_node if members]
        per_node, nodes = max(per_node, *map(len, used)), max(nodes, len(used))
        span = max(span, *(members[-1] - members[0] + 1 for members in used))
        fewest = min(fewest, *map(len, used))
    return prod(size for name, size in mesh if name in axes), per_node, nodes, span, fewest


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 6)),
    st.sets(st.sampled_from(["pp", "dp", "cp", "tp"]), min_size=1),
    st.sampled_from([1, 2, 4, 6, 8]),
)
def test_group_shape_is_what_the_ranks_show(
    sizes: tuple[int, int, int, int], axes: set[str], devices_per_node: int
) -> None:
    mesh = tuple(zip(("pp", "dp", "cp", "tp"), sizes, strict=True))
    seen = shape(mesh, *sorted(axes), devices_per_node=devices_per_node)
    fewest = seen.fewest_per_node or seen.ranks_per_node
    assert (seen.size, seen.ranks_per_node, seen.nodes, seen.span, fewest) == counted(
        mesh, tuple(sorted(axes)), devices_per_node
    )


def test_all_gather_in_a_chip() -> None:
    # each rank receives half of 1 GB at 100 GB/s = 5 ms, plus one hop
    assert toy_s("all_gather", GB, (("dp", 8), ("tp", 2)), "tp") == pytest.approx(5e-3 + 1e-6)


def test_reduce_scatter_in_a_node() -> None:
    # 3/4 of 1 GB at 40 GB/s = 18.75 ms, plus 3 hops
    assert toy_s("reduce_scatter", GB, (("dp", 4), ("tp", 4)), "tp") == pytest.approx(18.75e-3 + 3e-6)


def test_two_groups_on_a_chip_share_its_links() -> None:
    # dp at stride 2 in a node: each chip holds members of two groups, so 1/2 of 1 GB at 40 / 2 GB/s = 25 ms
    assert toy_s("all_gather", GB, (("dp", 2), ("tp", 2)), "dp") == pytest.approx(25e-3 + 1e-6)


def test_all_reduce_between_nodes_shares_the_adapters() -> None:
    # 4 ranks a node over 2 adapters of 10 GB/s: 5 GB/s each; 2 * 3/4 of 1 GB = 300 ms, plus 2 hops each way
    assert toy_s("all_reduce", GB, (("dp", 4), ("tp", 4)), "dp") == pytest.approx(300e-3 + 40e-6)


def test_all_reduce_over_two_full_nodes_is_hierarchical() -> None:
    # in the node 2 * 3/4 of 1 GB at 40 GB/s = 37.5 ms; between nodes 2 * 1/2 of a quarter of it at 5 GB/s = 50 ms
    hops = 2 * (3 * 1e-6 + 1 * 10e-6)
    assert toy_s("all_reduce", GB, (("dp", 8),), "dp") == pytest.approx(37.5e-3 + 50e-3 + hops)


def test_all_to_all_over_two_nodes() -> None:
    # each rank sends 1/8 to each other: 3/8 GB in the node at 20 GB/s = 18.75 ms, 4/8 GB to the other at 5 GB/s = 0.1 s
    assert toy_s("all_to_all", GB, (("dp", 8),), "dp") == pytest.approx(18.75e-3 + 100e-3 + 3e-6 + 10e-6)


def test_the_ends_of_a_pipeline_are_as_far_apart_as_it_is_long() -> None:
    def ends(*mesh: tuple[str, int]) -> GroupShape:
        return ends_shape(mesh, nodes_of(4))

    assert ends(("pp", 2), ("tp", 2)) == shape((("pp", 2), ("tp", 2)), "pp")
    assert ends(("pp", 4)) == GroupShape(2, 2, 1, 3, 4, 4)
    assert ends(("pp", 4), ("tp", 4)) == GroupShape(2, 1, 2, 4, 1, 4)
    # two stages a node: only one of them is an end
    assert ends(("pp", 8), ("tp", 2)) == GroupShape(2, 1, 2, 2, 1, 2)
    near = replace(TOY, nodes=8, nodes_per_domain=4, intra_domain=TOY.inter_node)
    assert [ends_shape((("pp", n), ("tp", 4)), near).nodes_per_domain for n in (4, 8)] == [2, 1]


def test_send_to_the_next_stage() -> None:
    # in the next node, 4 ranks share 20 GB/s: 100 MB take 20 ms
    assert toy_s("send_recv", 100 * MB, (("pp", 2), ("tp", 4)), "pp") == pytest.approx(20e-3 + 10e-6)
    # in the same node, two ranks of a chip share its 40 GB/s: 5 ms
    assert toy_s("send_recv", 100 * MB, (("pp", 2), ("tp", 2)), "pp") == pytest.approx(5e-3 + 1e-6)
    # stages of one rank each, four to a node: one rank a node crosses, at its adapter's 10 GB/s
    assert toy_s("send_recv", 100 * MB, (("pp", 8),), "pp") == pytest.approx(10e-3 + 10e-6)


def test_gradients_of_llama_7b_on_16_trn1_nodes() -> None:
    # tp 8, dp 64 = 4 a node x 16 nodes; 1.7 GB of bf16 gradients a rank.
    # In the node 3/4 at 104.064 GB/s shared by 2 cores = 24.5 ms; between nodes 15/16 of a quarter at 52 / 32 GB/s =
    # 245.2 ms; 3 hops of 3 us, log2(16) of 140 us and 40 us of launch
    cluster = load_cluster("trn1.32xlarge", 16)
    group = group_shape((("dp", 64), ("tp", 8)), ("dp",), cluster)
    expected = 0.75 * 1.7 / (104.064 / 2) + 15 / 16 / 4 * 1.7 / (52 / 32) + 3 * 3e-6 + 4 * 140e-6 + 40e-6
    assert collective_time_s("reduce_scatter", 1.7 * GB, group, cluster) == pytest.approx(expected)


TOGETHER = [name for name in instances() if load_cluster(name, 1).can_have(8)]
CLUSTERS = [load_cluster(name, 8) for name in TOGETHER] + [load_cluster("trn2.48xlarge", 8, 1), TOY]
MESHES = st.tuples(*(st.sampled_from([1, 2, 3, 4, 8]) for _ in range(4)))
AXES = st.sets(st.sampled_from(["pp", "dp", "cp", "tp"]), min_size=1).map(lambda names: tuple(sorted(names)))


def placed(sizes: tuple[int, ...], axes: tuple[str, ...], cluster: Cluster) -> GroupShape:
    return group_shape(tuple(zip(("pp", "dp", "cp", "tp"), sizes, strict=True)), axes, cluster)


@given(MESHES, AXES, st.sampled_from(CLUSTERS), st.sampled_from(KINDS), st.floats(1, 1e10), st.floats(1, 1e10))
def test_laws(
    sizes: tuple[int, ...], axes: tuple[str, ...], cluster: Cluster, kind: str, payload: float, more: float
) -> None:
    group = placed(sizes, axes, cluster)
    seconds = collective_time_s(kind, payload, group, cluster)
    assert collective_time_s(kind, 0, group, cluster) == 0
    if group.size == 1:
        assert seconds == 0
        return
    assert seconds > 0
    assert collective_time_s(kind, payload + more, group, cluster) > seconds
    law = collective_law(kind, group, cluster)
    assert law.time_s(payload) == seconds
    faster_inside = replace(
        cluster,
        intra_node=tuple(
            (devices, replace(link, bandwidth_bytes_per_s=1.5 * link.bandwidth_bytes_per_s))
            for devices, link in cluster.intra_node
        ),
    )
    adapter = cluster.inter_node
    faster_between = replace(
        cluster, inter_node=replace(adapter, bandwidth_bytes_per_s=2 * adapter.bandwidth_bytes_per_s)
    )
    for faster in (faster_inside, faster_between, replace(cluster, adapters_per_node=2 * cluster.adapters_per_node)):
        assert collective_time_s(kind, payload, group, faster) <= seconds


@given(MESHES, AXES, st.sampled_from(CLUSTERS), st.floats(1, 1e10))
def test_all_reduce_is_reduce_scatter_and_all_gather_launched_once(
    sizes: tuple[int, ...], axes: tuple[str, ...], cluster: Cluster, payload: float
) -> None:
    group = placed(sizes, axes, cluster)
    both = sum(collective_time_s(kind, payload, group, cluster) for kind in ("reduce_scatter", "all_gather"))
    once = cluster.collective_launch_s if group.size > 1 else 0
    assert collective_time_s("all_reduce", payload, group, cluster) == pytest.approx(both - once)
