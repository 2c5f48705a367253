"""Nodes that links faster than the network join, as in a Trn2 UltraServer: its file, cases worked by hand, and laws."""

import json
from dataclasses import replace
from itertools import product
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.collectives import (
    KINDS,
    CollectiveLaw,
    GroupShape,
    collective_law,
    collective_time_s,
    group_shape,
    mean_hop_law,
)
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.explanation.links import axis_links
from autoshard.layout.strategy import even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.search import search
from autoshard.spec.cluster import Cluster, Link, instances, load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import GB, MB
from tests.unit.plan_examples import plan, plan_70b, strategy
from tests.unit.test_collectives import TOY as NODES

# 8 nodes, 4 a domain: of each chip 30 GB/s to other nodes of the domain, 2 us a hop
TOY = replace(NODES, nodes=8, nodes_per_domain=4, intra_domain=Link("ring", 30 * GB, 2e-6))
Mesh = tuple[tuple[str, int], ...]


def without_domains(cluster: Cluster) -> Cluster:
    return replace(cluster, nodes_per_domain=1, intra_domain=None, domain=None)


def toy_s(kind: str, payload_bytes: float, mesh: Mesh, *axes: str) -> float:
    return collective_time_s(kind, payload_bytes, group_shape(mesh, axes, TOY), TOY)


def test_an_ultraserver_is_four_trn2_and_a_ring() -> None:
    plain, joined = load_cluster("trn2.48xlarge", 8), load_cluster("trn2u.48xlarge", 8)
    assert joined.nodes_per_domain == 4
    assert joined.intra_domain == Link("Z ring of the UltraServer", 256 * GB * 0.178, 1.62e-6)
    device = replace(joined.device, name=plain.device.name)
    assert without_domains(replace(joined, instance=plain.instance, device=device)) == plain
    # the 4 ranks of a chip share its ring
    assert joined.intra_domain_bandwidth_bytes_per_s(1) == pytest.approx(256 * GB * 0.178)
    for ranks in (4, 64):
        assert joined.intra_domain_bandwidth_bytes_per_s(ranks) == pytest.approx(256 * GB * 0.178 / 4)
    assert load_cluster("trn2u.48xlarge", 2, 1).devices_per_node == 128


def test_groups_in_one_domain() -> None:
    # dp from node to node: 2 ranks share a chip's 30 GB/s: 2 * 3/4 of 1 GB at 15 GB/s = 100 ms, plus 3 hops each way
    assert toy_s("all_reduce", GB, (("dp", 4), ("tp", 4)), "dp") == pytest.approx(100e-3 + 12e-6)
    # two of the four nodes: 1/2 of 1 GB at 15 GB/s
    assert toy_s("all_gather", GB, (("pp", 2), ("dp", 2), ("tp", 4)), "dp") == pytest.approx(1 / 30 + 2e-6)


def test_groups_over_two_domains() -> None:
    # 3/4 of 1 GB at 15 GB/s = 50 ms; of the quarter that is left half at 5 GB/s = 25 ms; 3 hops and one doubling
    assert toy_s("all_gather", GB, (("dp", 8), ("tp", 4)), "dp") == pytest.approx(75e-3 + 6e-6 + 10e-6)
    # in the node 3/4 at 40 GB/s = 18.75 ms, in the domain 3/4 of 1/4 at 15 = 12.5 ms, beyond 1/2 of 1/16 at 5 = 6.25 ms
    expected = 18.75e-3 + 12.5e-3 + 6.25e-3 + 3 * 1e-6 + 3 * 2e-6 + 10e-6
    assert toy_s("reduce_scatter", GB, (("dp", 32),), "dp") == pytest.approx(expected)
    # one node of each domain: the network alone, 1/2 of 1 GB at 5 GB/s
    assert toy_s("all_gather", GB, (("dp", 2), ("cp", 4), ("tp", 4)), "dp") == pytest.approx(100e-3 + 10e-6)


def test_all_to_all_over_two_domains() -> None:
    # 1/32 to each other: 3/32 GB at 20 GB/s = 4.6875 ms, 12/32 GB at 7.5 GB/s = 50 ms, 16/32 GB at 5 GB/s = 100 ms
    hops = 3 * 1e-6 + 3 * 2e-6 + 10e-6
    assert toy_s("all_to_all", GB, (("dp", 32),), "dp") == pytest.approx(154.6875e-3 + hops)
    # its ways on the ring are longer; where that leaves less than the adapters have, it takes those
    slow = replace(TOY, all_to_all_efficiency=0.1)
    group = group_shape((("dp", 4), ("tp", 4)), ("dp",), slow)
    assert collective_time_s("all_to_all", GB, group, slow) == pytest.approx(0.75 / 5 + 6e-6)


def test_send_to_the_next_node() -> None:
    # in the domain: 4 ranks share 60 GB/s, so 100 MB take 6.67 ms
    assert toy_s("send_recv", 100 * MB, (("pp", 4), ("tp", 4)), "pp") == pytest.approx(0.1 / 15 + 2e-6)
    # one rank of a node sends to the next node: its chip's 30 GB/s
    assert toy_s("send_recv", 100 * MB, (("pp", 16),), "pp") == pytest.approx(0.1 / 30 + 2e-6)
    # some stage is the last of its domain, and sends at 5 GB/s
    mesh = (("pp", 8), ("tp", 4))
    assert toy_s("send_recv", 100 * MB, mesh, "pp") == pytest.approx(20e-3 + 10e-6)
    # on average: 6 of the 7 hops stay in a domain
    mean = mean_hop_law(group_shape(mesh, ("pp",), TOY), TOY).time_s(100 * MB)
    assert mean == pytest.approx((6 * (0.1 / 15 + 2e-6) + 20e-3 + 10e-6) / 7)


def test_the_mean_hop_of_a_pipeline_inside_and_across_nodes() -> None:
    # 8 stages on 2 nodes of 4: 6 hops inside at 100 GB/s, as neighbours on a chip, one to the next node of the domain
    group = group_shape((("pp", 8),), ("pp",), TOY)
    inside, across = 0.1 / 100 + 1e-6, toy_s("send_recv", 100 * MB, (("pp", 8),), "pp")
    assert mean_hop_law(group, TOY).time_s(100 * MB) == pytest.approx((6 * inside + across) / 7)
    # where all hops are alike, it is the law of them
    alike = group_shape((("pp", 4),), ("pp",), TOY)
    assert mean_hop_law(alike, TOY) == collective_law("send_recv", alike, TOY)


@pytest.mark.parametrize(
    ("mesh", "nodes_per_domain"),
    [
        ((("dp", 6), ("tp", 4)), 1),  # 4 nodes in one domain, 2 in the next
        ((("pp", 2), ("dp", 3), ("tp", 4)), 1),  # the second stage has node 3 in one domain, nodes 4 and 5 in the next
        ((("pp", 3), ("dp", 2), ("tp", 4)), 2),  # nodes 0 1, 2 3 and 4 5
        ((("dp", 2), ("pp", 3), ("tp", 4)), 1),  # nodes 0 3 share a domain, 1 4 and 2 5 do not
        ((("pp", 2), ("dp", 2), ("tp", 6)), 1),  # nodes cut the tp groups: half of dp's members are in another node
        ((("dp", 12), ("tp", 4)), 4),
    ],
)
def test_groups_that_domains_cut_unevenly_talk_over_the_network(mesh: Mesh, nodes_per_domain: int) -> None:
    group = group_shape(mesh, ("dp",), TOY)
    assert group.nodes_per_domain == nodes_per_domain
    if nodes_per_domain == 1:
        plain = without_domains(TOY)
        assert group == group_shape(mesh, ("dp",), plain)
        for kind in KINDS:
            assert collective_law(kind, group, TOY) == collective_law(kind, group, plain)


def counted(mesh: Mesh, axes: tuple[str, ...], cluster: Cluster) -> int:
    """Nodes per domain where all groups have as many in all of theirs, else 1: read off the ranks of every group."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for rank, place in enumerate(product(*(range(size) for _, size in mesh))):
        key = tuple(index for index, (name, _) in zip(place, mesh, strict=True) if name not in axes)
        groups.setdefault(key, set()).add(rank // cluster.devices_per_node)
    seen = set()
    for nodes in groups.values():
        domains = {node // cluster.nodes_per_domain for node in nodes}
        seen |= {sum(node // cluster.nodes_per_domain == domain for node in nodes) for domain in domains}
    return seen.pop() if len(seen) == 1 else 1


AXES = st.sets(st.sampled_from(["pp", "dp", "cp", "tp"]), min_size=1).map(lambda names: tuple(sorted(names)))
SIZES = st.tuples(*(st.sampled_from([1, 2, 3, 4, 6, 8]) for _ in range(3)), st.sampled_from([1, 2, 4, 8]))


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    return tuple(zip(("pp", "dp", "cp", "tp"), sizes, strict=True))


@given(SIZES, AXES, st.sampled_from([2, 3, 4]))
def test_nodes_of_a_domain_are_what_the_ranks_show(sizes: tuple[int, ...], axes: tuple[str, ...], domain: int) -> None:
    """It may stay at 1 where nodes already cut groups unevenly."""
    cluster, mesh = replace(TOY, nodes_per_domain=domain), mesh_of(sizes)
    seen, truth = group_shape(mesh, axes, cluster).nodes_per_domain, counted(mesh, axes, cluster)
    assert seen == truth or (seen == 1 and any(size & (size - 1) for size in sizes))


CLUSTERS = [load_cluster("trn2u.48xlarge", 8), load_cluster("trn2u.48xlarge", 8, 1), TOY]


@given(SIZES, AXES, st.sampled_from(CLUSTERS), st.sampled_from(KINDS), st.floats(1, 1e10), st.floats(1.01, 10))
def test_faster_links_and_a_domain_are_never_slower(
    sizes: tuple[int, ...], axes: tuple[str, ...], cluster: Cluster, kind: str, payload: float, factor: float
) -> None:
    group, plain = group_shape(mesh_of(sizes), axes, cluster), without_domains(cluster)
    seconds = collective_time_s(kind, payload, group, cluster)
    # a rounding error more where neither has anything to gain
    alone = collective_time_s(kind, payload, group_shape(mesh_of(sizes), axes, plain), plain)
    assert seconds <= alone * (1 + 1e-12)
    for field in ("intra_domain", "inter_node"):
        link = getattr(cluster, field)
        faster = replace(cluster, **{field: replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s)})
        assert collective_time_s(kind, payload, group, faster) <= seconds


@pytest.mark.parametrize("nodes", [6, 8])
def test_a_plan_for_ultraservers_is_at_least_as_fast(nodes: int) -> None:
    model, training = load_model("llama3-8b"), TrainingSpec(8192, 64 * nodes, load_precision("mixed_precision"))
    plain, joined = load_cluster("trn2.48xlarge", nodes), load_cluster("trn2u.48xlarge", nodes)
    apart, best = (search(model, training, cluster, top=0).best for cluster in (plain, joined))
    again = estimate(model, training, joined, apart.strategy)
    assert best.estimate.step_time_s <= again.step_time_s * (1 + 1e-12)
    assert again.step_time_s <= apart.estimate.step_time_s * (1 + 1e-12)
    assert again.memory == apart.estimate.memory


def two_levels(kind: str, group: GroupShape, cluster: Cluster) -> CollectiveLaw:
    """The law of clusters that have no domains, as it was before there were any; without send_recv, and of groups that
    have as many ranks on each node."""
    local, nodes, size = group.ranks_per_node, group.nodes, group.size
    inner = cluster.intra_node_link(group.span)
    rings = 1 if group.span <= cluster.devices_per_chip else min(group.stride, cluster.devices_per_chip)
    inside = rings / inner.bandwidth_bytes_per_s
    outside = 1 / cluster.inter_node_bandwidth_bytes_per_s(group.senders_per_node)
    hops_s = (local - 1) * inner.latency_s + ceil(log2(nodes)) * cluster.inter_node.latency_s
    if kind == "all_to_all":
        inside *= (local - 1) / size / cluster.all_to_all_efficiency
        return CollectiveLaw(cluster.collective_launch_s + hops_s, inside + outside * (size - local) / size)
    s_per_byte = inside * (local - 1) / local + outside * (nodes - 1) / nodes / local
    passes = 2 if kind == "all_reduce" else 1
    return CollectiveLaw(cluster.collective_launch_s + passes * hops_s, passes * s_per_byte)


TWO_LEVELS = [name for name in instances() if load_cluster(name, 1).nodes_per_domain == 1]


@pytest.mark.parametrize("instance", [name for name in TWO_LEVELS if load_cluster(name, 1).can_have(12)])
def test_the_law_without_domains_is_that_of_two_levels_to_the_bit(instance: str) -> None:
    cluster = load_cluster(instance, 12)
    for sizes in product((1, 3, 4), (1, 2, 6), (1, 2), (1, 4, 32)):
        for axes in (("dp",), ("tp",), ("cp", "dp"), ("cp", "tp"), ("dp", "tp")):
            group = group_shape(mesh_of(sizes), axes, cluster)
            for kind in KINDS[:-1] if group.size > 1 and not group.fewest_per_node else ():
                assert collective_law(kind, group, cluster) == two_levels(kind, group, cluster)


def test_racks_of_gpus_are_domains_too() -> None:
    # 72 GPUs in 18 nodes of 4 whose NVLink is the same everywhere: as if they were one node
    cluster = load_cluster("gb200-186gb", 36)
    assert cluster.nodes_per_domain == 18 and cluster.world_size == 2 * 72
    law = collective_law("all_gather", group_shape((("dp", 72),), ("dp",), cluster), cluster)
    assert law.seconds_per_byte == pytest.approx(71 / 72 / (900 * GB * 0.8))
    hop_s = cluster.intra_node[-1][1].latency_s
    assert law.latency_s == pytest.approx(cluster.collective_launch_s + (3 + 17) * hop_s)
    beyond = collective_law("all_gather", group_shape((("dp", 144),), ("dp",), cluster), cluster)
    network = cluster.inter_node.bandwidth_bytes_per_s
    assert beyond.seconds_per_byte == pytest.approx(71 / 72 / (900 * GB * 0.8) + 1 / 2 / 72 / network)


@pytest.mark.parametrize(
    ("nodes", "each"),
    [(1, 18), (2, 2), (16, 16), (18, 18), (32, 16), (36, 18), (40, 10), (64, 16), (19, 18)],
)
def test_a_job_takes_as_many_nodes_of_every_rack(nodes: int, each: int) -> None:
    """18 do not divide 32: such a job takes 16 of each rack. No number of nodes divides 19: a rack and one more."""
    assert load_cluster("gb200-186gb", nodes).nodes_per_domain == each
    assert load_cluster("trn2u.48xlarge", nodes).nodes_per_domain == 4


@pytest.mark.parametrize("instance", ["gb200-186gb", "my-rack"])
def test_a_cluster_knows_its_own_domains(instance: str, tmp_path: Path) -> None:
    """Also one of a file of the user's own, by whatever name; an older plan has those of the packaged instance."""
    domain = {"nodes": {"value": 8, "source": "mine"}, "segment_multiple": {"value": 2, "source": "mine"}}
    file = tmp_path / "mine.json"
    own = {"format_version": 1, "like": "gb200-186gb", "instance": instance, "domain": domain}
    file.write_text(json.dumps(own))
    for before, after, each in ((16, 32, 8), (6, 8, 8), (4, 5, 8), (8, 6, 6), (8, 10, 2)):
        wanted = load_cluster(None, after, hardware_file=file)
        assert load_cluster(None, before, hardware_file=file).with_nodes(after) == wanted
        assert wanted.nodes_per_domain == each
    older = replace(load_cluster("gb200-186gb", 32), domain=None)
    assert older.with_nodes(36).nodes_per_domain == 18


@pytest.mark.parametrize("instance", ["gb200-186gb", "trn2u.48xlarge"])
def test_a_cluster_without_its_links_between_nodes_stays_so(instance: str) -> None:
    """It was refused for other nodes: its domain gave nodes that no link joins."""
    apart = replace(load_cluster(instance, 4), nodes_per_domain=1, intra_domain=None)
    for before in (apart, replace(apart, domain=None)):
        more = before.with_nodes(8)
        assert (more.nodes, more.nodes_per_domain, more.intra_domain) == (8, 1, None)
    halves = replace(load_cluster(instance, 4), nodes_per_domain=2)
    assert halves.with_nodes(8).nodes_per_domain == 2


@pytest.mark.parametrize("size", [32, 64])
def test_a_group_in_a_rack_does_not_touch_the_network(size: int) -> None:
    cluster = load_cluster("gb200-186gb", 64)
    slow = replace(cluster, inter_node=replace(cluster.inter_node, bandwidth_bytes_per_s=1.0, latency_s=1.0))
    group = group_shape((("pp", 256 // size), ("ep", size)), ("ep",), cluster)
    assert group.nodes_per_domain == group.nodes == size // 4
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        assert collective_law(kind, group, slow) == collective_law(kind, group, cluster)


@pytest.mark.parametrize(
    ("degrees", "text"),
    [
        ({"tp": 64, "pp": 2, "dp": 4}, "tp1 tp0 in a node; dp over the Z ring of the UltraServer; pp over the network"),
        (
            {"tp": 64, "pp": 1, "dp": 8},
            "tp1 tp0 in a node; dp over the Z ring of the UltraServer and the network",
        ),
        ({"tp": 16, "pp": 8, "dp": 4}, "tp1 tp0 dp in a node; pp over the Z ring of the UltraServer and the network"),
    ],
)
def test_a_plan_says_over_which_links_its_axes_talk(degrees: dict[str, int], text: str) -> None:
    chosen = strategy(**degrees, recompute="full", stage_layers=even_stage_layers(80, degrees["pp"]))
    assert axis_links(plan("llama3-70b", "trn2u.48xlarge", 8, 8192, 1024, "torch", chosen)) == text
    assert axis_links(plan_70b()) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"like": "trn9"}, "like='trn9' of my.json must be one of: a100-40gb, "),
        ({"domain": {"link": "x"}}, "my.json.domain lacks chip_link_bandwidth_bytes_per_s"),
        ({"calibration": {}}, "my.json.calibration lacks domain_link_efficiency"),
        ({"colour": "red"}, "my.json has a field that is not known: 'colour'; known: "),
        (
            {"domain": None},
            "my.json.domain must be an object with named fields, not null",
        ),
    ],
)
def test_wrong_files(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    content = (Path(__file__).parents[2] / "autoshard/hardware/trn2u.48xlarge.json").read_text()
    path = tmp_path / "my.json"
    path.write_text(json.dumps({**json.loads(content), **changes}))
    with pytest.raises(AutoshardError) as error:
        load_cluster(None, 1, hardware_file=path)
    assert str(error.value).startswith(text)


def test_links_and_their_number_of_nodes_go_together() -> None:
    with pytest.raises(AutoshardError) as error:
        replace(TOY, nodes_per_domain=1)
    expected = "nodes_per_domain=1 of cluster cpu does not go with intra_domain=ring: a link joins 2 nodes or more"
    assert str(error.value) == expected
    with pytest.raises(AutoshardError, match="nodes_per_domain=4 of cluster cpu does not go with intra_domain=null"):
        replace(TOY, intra_domain=None)
