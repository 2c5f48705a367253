"""Seconds of a collective: latency plus bytes over bandwidth, in a node, between nodes of a domain, then beyond."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2, prod
from typing import NamedTuple

from autoshard.backends.native_neuron import takes_all_to_all
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.rows import Number, largest, where
from autoshard.spec.cluster import Cluster
from autoshard.spec.platform import PLATFORMS, Fold

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv")


@dataclass(frozen=True)
class GroupShape:
    """The places of the ranks of a group; every group over the same axes has the same shape.

    size: ranks of the group. ranks_per_node: the most that share a node. nodes: over how many they spread.
    stride: between neighbouring members; more than 1 means that other groups sit in between.
    span: devices from the first to the last member within a node, both counted; on a folded mesh the shortest way
    around the torus.
    senders_per_node: ranks of a node, of all groups, that communicate at the same time: every stage runs in step.
    nodes_per_domain: nodes that share an UltraServer or another such domain, as many in every domain of every group; 1
    where domains cut groups unevenly: those talk over the network alone.
    fewest_per_node: the fewest that share a node, of groups over several; 0 where all nodes of all groups have as many.
    """

    size: int
    ranks_per_node: int
    nodes: int
    stride: int
    span: int
    senders_per_node: int
    nodes_per_domain: int = 1
    fewest_per_node: int = 0


_Axes = tuple[tuple[int, int], ...]
"""(size, stride) of each axis."""


def group_shape(mesh: tuple[tuple[str, int], ...], axes: tuple[str, ...], cluster: Cluster) -> GroupShape:
    """The shape of the groups over `axes`.

    mesh: (axis, size) of every axis, pp first, the last one varying fastest over ranks; ranks fill nodes in order.
    With trn1's 32 devices a node and (pp 4, dp 4, tp 32), tp lies in one node and dp goes over 4 nodes at stride 32.
    """
    return _group_shape(mesh, axes, *cluster.places)


def group_shapes(
    mesh: tuple[tuple[str, int], ...], sets: Sequence[tuple[str, ...]], cluster: Cluster
) -> list[GroupShape]:
    """`group_shape` of each of several sets of axes of one mesh."""
    node, domain, chip, layout_rules = cluster.places
    placed = _placed(mesh, node, domain)
    if not placed.fills_domains:
        return [group_shape(mesh, axes, cluster) for axes in sets]
    same = None, min(placed.world_size, node), placed.tp, node, domain, chip, layout_rules
    return [_aligned_shape(tuple([axis[1:] for axis in placed.axes if axis[0] in axes]), *same) for axes in sets]


@lru_cache(maxsize=8192)
def _group_shape(
    mesh: tuple[tuple[str, int], ...], axes: tuple[str, ...], node: int, domain: int, chip: int, layout_rules: str
) -> GroupShape:
    """`group_shape` by what it depends on alone. node, chip: devices of one. domain: its nodes."""
    placed = _placed(mesh, node, domain)
    assert set(axes) <= placed.names, f"{axes} are not all axes of {mesh}"
    inside = tuple([(size, step) for name, size, step in placed.axes if name in axes])
    senders = min(placed.world_size, node)
    if placed.fills_domains:
        return _aligned_shape(inside, None, senders, placed.tp, node, domain, chip, layout_rules)
    outside = tuple([(size, step) for name, size, step in placed.axes if name not in axes])
    if placed.fills_nodes:
        return _aligned_shape(inside, outside, senders, placed.tp, node, domain, chip, layout_rules)
    worst, size = _worst_placement(inside, outside, node), prod([count for count, _ in inside])
    step = min([step for _, step in inside], default=1)
    fewest = 0 if worst.fewest == worst.most else worst.fewest
    return GroupShape(size, worst.most, worst.blocks, step, worst.span, senders, fewest_per_node=fewest)


@lru_cache(maxsize=4096)
def _aligned_shape(
    inside: _Axes, outside: _Axes | None, senders: int, tp: int, node: int, domain: int, chip: int, layout_rules: str
) -> GroupShape:
    """The shape of groups that fill nodes evenly. inside: (size, stride) of their axes. outside: of the others; None
    where domains are filled evenly, too. tp: the tensor-parallel degree. The other arguments are those of
    `_group_shape`."""
    size, step = prod([count for count, _ in inside]), min([step for _, step in inside], default=1)
    within = _within(inside, node)
    ranks_per_node = prod([count for count, _ in within])
    span = 1 + sum([(count - 1) * step for count, step in within])
    if ranks_per_node > 1:
        fold = PLATFORMS[layout_rules].fold(node // chip, node, tp)
        if fold is not None:
            step, span = _around_the_torus(within, fold)
    over = _over_nodes(inside, node)
    if outside is None:
        near = prod([count for count, _ in _within(over, domain)])
    else:
        near = _unevenly_near(over, _over_nodes(outside, node), domain)
    return GroupShape(size, ranks_per_node, size // ranks_per_node, step, span, senders, near)


def possible_shapes(mesh: tuple[tuple[str, int], ...], axes: tuple[str, ...], cluster: Cluster) -> set[GroupShape]:
    """The shapes that groups over `axes` may have where the other axes are cut or ordered otherwise, with as many ranks
    of them inside and outside of the strides of the groups as in this mesh. Arguments as of `group_shape`.

    Why several: groups look alike only where every axis fills nodes and domains evenly, which other cuts of the same
    ranks may do, and of those that do not fill them the worst one counts.
    """
    node, domain, chip, layout_rules = cluster.places
    found, placed = {group_shape(mesh, axes, cluster)}, _placed(mesh, node, domain)
    inside = tuple([(size, step) for name, size, step in placed.axes if name in axes])
    if not placed.fills_domains and all(_is_aligned(*axis, node) for axis in inside):
        outside = tuple([(size, step) for name, size, step in placed.axes if name not in axes])
        aligned = min(placed.world_size, node), placed.tp, node, domain, chip, layout_rules
        found |= {_aligned_shape(inside, others, *aligned) for others in (None, outside)}
    return found


def ends_shape(mesh: tuple[tuple[str, int], ...], cluster: Cluster) -> GroupShape:
    """The shape of the groups of the first and the last pipeline rank, which share a table. Arguments as of
    `group_shape`."""
    along = group_shape(mesh, ("pp",), cluster)
    if along.size <= 2:
        return along
    if along.nodes == 1:
        return replace(along, size=2, ranks_per_node=2, stride=along.span - 1, fewest_per_node=0)
    senders = max(1, along.senders_per_node // along.ranks_per_node)  # ranks between the ends are silent
    near = 2 if along.nodes_per_domain == along.nodes else 1
    two = replace(along, size=2, ranks_per_node=1, nodes=2, span=1, senders_per_node=senders, nodes_per_domain=near)
    return replace(two, fewest_per_node=0)


class _Placed(NamedTuple):
    """Ranks of a mesh on their nodes. axes: (name, size, stride) of those of more than one rank. fills_nodes,
    fills_domains: whether every axis lies within nodes (domains), goes from one to the next or fills whole ones."""

    names: frozenset[str]
    axes: tuple[tuple[str, int, int], ...]
    world_size: int
    tp: int
    fills_nodes: bool
    fills_domains: bool


@lru_cache(maxsize=2048)
def _placed(mesh: tuple[tuple[str, int], ...], node: int, domain: int) -> _Placed:
    axes = list[tuple[str, int, int]]()
    stride = 1
    for name, size in reversed(mesh):
        if size > 1:
            axes.insert(0, (name, size, stride))
        stride *= size
    sizes = [(size, step) for _, size, step in axes]
    fills_nodes = all(_is_aligned(*axis, node) for axis in sizes)
    fills_domains = fills_nodes and all(_is_aligned(*axis, domain) for axis in _over_nodes(sizes, node))
    tp = prod([size for name, size in mesh if name in TENSOR_PARALLEL_AXES])
    return _Placed(frozenset(name for name, _ in mesh), tuple(axes), stride, tp, fills_nodes, fills_domains)


def _within(axes: Sequence[tuple[int, int]], block: int) -> list[tuple[int, int]]:
    """(size, stride) of aligned axes, as far as one block of neighbours reaches."""
    return [(min(size, max(1, block // stride)), stride) for size, stride in axes]


def _around_the_torus(axes: Sequence[tuple[int, int]], fold: Fold) -> tuple[int, int]:
    """(stride, span) within a node of a group of a folded mesh: the node's last row is the first one's neighbour."""
    node, places = fold.devices_per_node, [0]
    for size, stride in axes:
        places = [place + index * stride for place in places for index in range(size)]
    devices = sorted(map(fold.rank, places))
    gaps = [(after - before) % node for before, after in zip(devices, (*devices[1:], devices[0]), strict=True)]
    return min(gaps), node - max(gaps) + 1


def _over_nodes(axes: Sequence[tuple[int, int]], devices_per_node: int) -> list[tuple[int, int]]:
    """Aligned axes as nodes see them: (size, stride) in nodes, without those that stay in one."""
    seen = [
        (size, stride // devices_per_node)
        if stride >= devices_per_node
        else (max(1, size * stride // devices_per_node), 1)
        for size, stride in axes
    ]
    return [(size, stride) for size, stride in seen if size > 1]


def _unevenly_near(inside: Sequence[tuple[int, int]], outside: Sequence[tuple[int, int]], domain: int) -> int:
    """Nodes of each group in each of its domains, which are not filled evenly; 1 where groups differ in that. Axes in
    nodes; domain: its nodes."""
    worst = _worst_placement(inside, outside, domain)
    return worst.most if worst.most * worst.blocks == prod(size for size, _ in inside) else 1


def _is_aligned(size: int, stride: int, block: int) -> bool:
    """Whether an axis lies within nodes, goes from node to node or fills whole nodes: then all groups look alike.

    block: devices of a node, or nodes of a domain.
    """
    return (
        stride % block == 0 or block % (stride * size) == 0 or (block % stride == 0 and size % (block // stride) == 0)
    )


class _Placement(NamedTuple):
    """The worst numbers over all groups. most, fewest: members in one block, the fewest of groups in several blocks.
    blocks: that a group is in. span: places from a group's first to its last member in a block."""

    most: int
    fewest: int
    blocks: int
    span: int


def _worst_placement(inside: Sequence[tuple[int, int]], outside: Sequence[tuple[int, int]], block: int) -> _Placement:
    """The places of all groups, where blocks cut groups at different places. block: as in _is_aligned."""
    starts = {0}
    for size, stride in outside:  # only the place within the node matters
        places = {index * stride % block for index in range(min(size, block))}
        starts = {(start + place) % block for start in starts for place in places}
    return _worst_start(tuple(inside), frozenset(starts), block)


@lru_cache(maxsize=4096)
def _worst_start(inside: _Axes, starts: frozenset[int], block: int) -> _Placement:
    """`_worst_placement` over groups that start at these places of a node: many meshes share them."""
    members = [0]
    for size, stride in inside:
        members = [member + index * stride for member in members for index in range(size)]
    most = blocks = span = 1
    fewest = len(members)
    for start in starts:
        placed = [divmod(start + member, block) for member in members]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for node, device in placed:
            first[node], last[node] = min(first.get(node, device), device), max(last.get(node, device), device)
        counts = Counter(node for node, _ in placed).values()
        most, blocks = max(most, *counts), max(blocks, len(first))
        fewest = min(fewest, *counts)
        span = max(span, *(last[node] - first[node] + 1 for node in first))
    return _Placement(most, fewest, blocks, span)


@dataclass(frozen=True)
class CollectiveLaw:
    """Time of a collective as a straight line over its payload, over rows."""

    latency_s: Number
    seconds_per_byte: Number

    def time_s(self, payload_bytes: Number) -> Number:
        """Seconds of a collective; 0 for nothing to send: such a collective is not issued."""
        return where(payload_bytes > 0, self.latency_s + payload_bytes * self.seconds_per_byte, 0.0)


def collective_time_s(kind: str, payload_bytes: float, group: GroupShape, cluster: Cluster) -> float:
    """Seconds of one collective when every group of that shape runs it at the same time.

    kind: one of KINDS. payload_bytes: the larger of the input and output buffer of one rank: the gathered tensor of an
    all_gather, the input of a reduce_scatter, the buffer of the others; for send_recv what goes to the next rank.
    Leaves out overlap with compute and with other collectives, and algorithms for small messages.
    """
    seconds: float = collective_law(kind, group, cluster).time_s(payload_bytes)
    return seconds


def exposed_ring_s(ring_s: Number, work_s: Number, hops: Number) -> Number:
    """Seconds that hops round a ring take beyond the work beside them, over rows: each piece but the first travels
    while its rank works on the one at hand. ring_s: of all hops. work_s: on all pieces, one more than hops."""
    return largest(0.0, ring_s - work_s * hops / (hops + 1))


@lru_cache(maxsize=4096)
def collective_law(kind: str, group: GroupShape, cluster: Cluster, copies: int = 0, in_order: int = 0) -> CollectiveLaw:
    """The straight line of one kind of collective over groups of one shape.

    Ring algorithms, hierarchical, for L members in each of P nodes of each of Q domains (without domains P is 1, and Q
    counts nodes): each rank receives (L - 1) / L of the payload within its node, (P - 1) / P of its own 1 / L from its
    peers in the domain, and (Q - 1) / Q of its own 1 / (L P) from those in other domains; where nodes have unequally
    many members, those of the node with the fewest bring in most, each its part of all that is elsewhere. There is a
    hop of latency for each other member in the node, for each other node of the domain, and for each doubling of
    domains, since many talk along trees. An all_reduce is a reduce_scatter and an all_gather, launched once. In an
    all_to_all each member sends 1 / size of the payload to each other member; of as many members as a device has no
    all-to-all for, each gathers the payloads of all. copies: of that all_to_all, where its payload are so many copies
    of each token for as many experts: a token then goes to a member once, and once to all members in another domain,
    that hand it on; 0 where every copy travels. in_order: as in `sent_once`.
    """
    assert kind in KINDS, f"unknown collective {kind}"
    size, local, near = group.size, group.ranks_per_node, group.nodes_per_domain
    together = (group.fewest_per_node or local) * near  # members that nothing but the network joins with the others
    if size == 1:
        return CollectiveLaw(0.0, 0.0)
    if kind == "send_recv":
        return _send_recv_law(group, cluster)
    if kind == "all_to_all" and cluster.stack is not None and not takes_all_to_all(size):
        gathered = collective_law("all_gather", group, cluster)
        return CollectiveLaw(gathered.latency_s, size * gathered.seconds_per_byte)
    far, senders = group.nodes // near, group.senders_per_node
    inner = cluster.intra_node_link(group.span)
    inner_s_per_byte = _rings_on_a_chip(group, cluster) / inner.bandwidth_bytes_per_s
    outer_s_per_byte = 1 / cluster.inter_node_bandwidth_bytes_per_s(senders)
    hops_s = (local - 1) * inner.latency_s + _domain_hops_s(group, cluster)
    hops_s += ceil(log2(far)) * cluster.inter_node.latency_s
    if kind == "all_to_all":
        share = cluster.all_to_all_efficiency
        if copies:
            outer_s_per_byte *= sent_once(far, copies, in_order)
            share /= sent_once(size, copies, in_order)
        inner_s_per_byte *= (local - 1) / size / share
        near_s_per_byte = _domain_s_per_byte(senders, group, cluster, share) * local * (near - 1) / size
        s_per_byte = inner_s_per_byte + near_s_per_byte + outer_s_per_byte * (size - together) / size
        return CollectiveLaw(cluster.collective_launch_s + hops_s, s_per_byte)
    near_s_per_byte = _domain_s_per_byte(senders, group, cluster) * (near - 1) / near / local
    elsewhere, everywhere = (size - together, size) if group.fewest_per_node else (far - 1, far)
    far_s_per_byte = outer_s_per_byte * elsewhere / everywhere / together
    s_per_byte = inner_s_per_byte * (local - 1) / local + near_s_per_byte + far_s_per_byte
    passes = 2 if kind == "all_reduce" else 1
    return CollectiveLaw(cluster.collective_launch_s + passes * hops_s, passes * s_per_byte)


def sent_once(places: int, copies: int, in_order: int = 0) -> float:
    """The share of a token's copies that travel if one goes to each place that any of them is for.

    in_order: of how many experts each token takes neighbours; 0 where it takes any at random.
    """
    if in_order:
        return max(1.0, copies * places / in_order) / copies
    return places * (1 - (1 - 1 / places) ** copies) / copies


def _domain_s_per_byte(ranks: int, group: GroupShape, cluster: Cluster, share: float = 1.0) -> float:
    """Between nodes of a domain, so many ranks of a node sending: over its links, or the adapters if those are faster.

    share: of the links' bandwidth. 0 where no two nodes of a group share a domain.
    """
    if group.nodes_per_domain == 1:
        return 0.0
    links = share * cluster.intra_domain_bandwidth_bytes_per_s(ranks)
    return 1 / max(links, cluster.inter_node_bandwidth_bytes_per_s(ranks))


def _domain_hops_s(group: GroupShape, cluster: Cluster) -> float:
    """A hop to each other node of the domain."""
    return 0.0 if cluster.intra_domain is None else (group.nodes_per_domain - 1) * cluster.intra_domain.latency_s


def _rings_on_a_chip(group: GroupShape, cluster: Cluster) -> int:
    """Groups whose members alternate on a chip share its links to other chips; within a chip each has its own way."""
    return 1 if group.span <= cluster.devices_per_chip else min(group.stride, cluster.devices_per_chip)


def mean_hop_law(group: GroupShape, cluster: Cluster) -> CollectiveLaw:
    """Seconds over bytes of what a rank sends to the next one, as the mean over all such pairs of a group: of a long
    pipeline most lie within a node or a domain."""
    domains = group.nodes // group.nodes_per_domain
    hops = (
        (group.size - group.nodes, replace(group, nodes=1, nodes_per_domain=1)),
        (group.nodes - domains, replace(group, nodes=group.nodes_per_domain)),
        (domains - 1, group),
    )
    laws = [(count / (group.size - 1), _send_recv_law(shape, cluster)) for count, shape in hops if count]
    return CollectiveLaw(
        sum(share * law.latency_s for share, law in laws), sum(share * law.seconds_per_byte for share, law in laws)
    )


def _send_recv_law(group: GroupShape, cluster: Cluster) -> CollectiveLaw:
    """Every rank sends to the next one of its group; the slowest pair counts, one that crosses nodes or domains if any
    does. Where ranks cannot send, a broadcast in a group of two does, which is an all-reduce on such devices: as many
    bytes each way, and each hop twice."""
    law = _sent_law(group, cluster)
    return (
        law if cluster.has_p2p else CollectiveLaw(2 * law.latency_s - cluster.collective_launch_s, law.seconds_per_byte)
    )


def _sent_law(group: GroupShape, cluster: Cluster) -> CollectiveLaw:
    launch_s = cluster.collective_launch_s
    if group.nodes > 1:
        crossing = max(1, group.senders_per_node // group.ranks_per_node)  # one rank of each group in a node
        if group.nodes == group.nodes_per_domain and cluster.intra_domain is not None:
            near_s_per_byte = _domain_s_per_byte(crossing, group, cluster)
            return CollectiveLaw(launch_s + cluster.intra_domain.latency_s, near_s_per_byte)
        bandwidth = cluster.inter_node_bandwidth_bytes_per_s(crossing)
        return CollectiveLaw(launch_s + cluster.inter_node.latency_s, 1 / bandwidth)
    link = cluster.intra_node_link(group.stride + 1)
    rings = min(group.stride, cluster.devices_per_chip) if group.stride + 1 > cluster.devices_per_chip else 1
    return CollectiveLaw(launch_s + link.latency_s, rings / link.bandwidth_bytes_per_s)
