"""What a collective costs: latency plus bytes over bandwidth, inside a node first, then between nodes."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2, prod

from autoshard.spec.cluster import Cluster

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv")


@dataclass(frozen=True)
class GroupShape:
    """Where the ranks of a group sit; every group over the same axes has the same shape.

    size: ranks of the group. ranks_per_node: the most that share a node. nodes: over how many they spread.
    stride: between neighbouring members; more than 1 means that other groups sit in between.
    span: devices from the first to the last member within a node, both counted.
    senders_per_node: ranks of a node, of all groups, that communicate at the same time: every stage runs in step.
    """

    size: int
    ranks_per_node: int
    nodes: int
    stride: int
    span: int
    senders_per_node: int


@lru_cache(maxsize=4096)
def group_shape(mesh: tuple[tuple[str, int], ...], axes: tuple[str, ...], devices_per_node: int) -> GroupShape:
    """The shape of the groups over `axes`.

    mesh: (axis, size) of every axis, pp first, the last one varying fastest over ranks; ranks fill nodes in order.
    With trn1's 32 devices a node and (pp 4, dp 4, tp 32), tp lies in one node and dp goes over 4 nodes at stride 32.
    """
    assert set(axes) <= {name for name, _ in mesh}, f"{axes} are not all axes of {mesh}"
    strides: list[int] = []
    stride = 1
    for _, size in reversed(mesh):
        strides.insert(0, stride)
        stride *= size
    inside = [(size, step) for (name, size), step in zip(mesh, strides, strict=True) if name in axes and size > 1]
    outside = [(size, step) for (name, size), step in zip(mesh, strides, strict=True) if name not in axes and size > 1]
    size, senders = prod(count for count, _ in inside), min(stride, devices_per_node)
    step = min((step for _, step in inside), default=1)
    if all(_is_aligned(*axis, devices_per_node) for axis in inside + outside):
        within = [(min(count, max(1, devices_per_node // step)), step) for count, step in inside]
        ranks_per_node = prod(count for count, _ in within)
        span = 1 + sum((count - 1) * step for count, step in within)
        return GroupShape(size, ranks_per_node, size // ranks_per_node, step, span, senders)
    ranks_per_node, nodes, span = _worst_placement(inside, outside, devices_per_node)
    return GroupShape(size, ranks_per_node, nodes, step, span, senders)


def _is_aligned(size: int, stride: int, devices_per_node: int) -> bool:
    """Whether an axis lies within nodes, goes from node to node or fills whole nodes: then all groups look alike."""
    return (
        stride % devices_per_node == 0
        or devices_per_node % (stride * size) == 0
        or (devices_per_node % stride == 0 and size % (devices_per_node // stride) == 0)
    )


def _worst_placement(
    inside: list[tuple[int, int]], outside: list[tuple[int, int]], devices_per_node: int
) -> tuple[int, int, int]:
    """(ranks per node, nodes, span) at their largest over all groups, where nodes cut groups at different places."""
    members, starts = [0], {0}
    for size, stride in inside:
        members = [member + index * stride for member in members for index in range(size)]
    for size, stride in outside:  # only the place within the node matters
        places = {index * stride % devices_per_node for index in range(min(size, devices_per_node))}
        starts = {(start + place) % devices_per_node for start in starts for place in places}
    ranks_per_node = nodes = span = 1
    for start in starts:
        placed = [divmod(start + member, devices_per_node) for member in members]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for node, device in placed:
            first[node], last[node] = min(first.get(node, device), device), max(last.get(node, device), device)
        ranks_per_node = max(ranks_per_node, *Counter(node for node, _ in placed).values())
        nodes = max(nodes, len(first))
        span = max(span, *(last[node] - first[node] + 1 for node in first))
    return ranks_per_node, nodes, span


@dataclass(frozen=True)
class CollectiveLaw:
    """Time of a collective as a straight line over its payload: what search multiplies many payloads with."""

    latency_s: float
    seconds_per_byte: float

    def time_s(self, payload_bytes: float) -> float:
        """Zero for nothing to send: such a collective is not issued."""
        return self.latency_s + payload_bytes * self.seconds_per_byte if payload_bytes else 0.0


def collective_time_s(kind: str, payload_bytes: float, group: GroupShape, cluster: Cluster) -> float:
    """Seconds of one collective when every group of that shape runs it at the same time.

    kind: one of KINDS. payload_bytes: the larger of the input and output buffer of one rank: the gathered tensor of an
    all_gather, the input of a reduce_scatter, the buffer of the others; for send_recv what goes to the next rank.
    Leaves out overlap with compute and with other collectives, and algorithms for small messages.
    """
    return collective_law(kind, group, cluster).time_s(payload_bytes)


@lru_cache(maxsize=4096)
def collective_law(kind: str, group: GroupShape, cluster: Cluster) -> CollectiveLaw:
    """The straight line of one kind of collective over groups of one shape.

    Ring algorithms, hierarchical between nodes, for L members in each of N nodes: each rank receives (L - 1) / L of the
    payload within its node, and (N - 1) / N of its own 1 / L from its peers in other nodes; a hop of latency for each
    other member in the node, and for each doubling of nodes, since many nodes talk along trees. An all_reduce is a
    reduce_scatter and an all_gather, launched once. In an all_to_all each member sends 1 / size of the payload to each
    other member.
    """
    assert kind in KINDS, f"unknown collective {kind}"
    size, local, nodes = group.size, group.ranks_per_node, group.nodes
    if size == 1:
        return CollectiveLaw(0.0, 0.0)
    if kind == "send_recv":
        return _send_recv_law(group, cluster)
    inner = cluster.intra_node_link(group.span)
    inner_s_per_byte = _rings_on_a_chip(group, cluster) / inner.bandwidth_bytes_per_s
    outer_s_per_byte = 1 / cluster.inter_node_bandwidth_bytes_per_s(group.senders_per_node)
    hops_s = (local - 1) * inner.latency_s + ceil(log2(nodes)) * cluster.inter_node.latency_s
    if kind == "all_to_all":
        inner_s_per_byte *= (local - 1) / size / cluster.all_to_all_efficiency
        return CollectiveLaw(
            cluster.collective_launch_s + hops_s, inner_s_per_byte + outer_s_per_byte * (size - local) / size
        )
    s_per_byte = inner_s_per_byte * (local - 1) / local + outer_s_per_byte * (nodes - 1) / nodes / local
    passes = 2 if kind == "all_reduce" else 1
    return CollectiveLaw(cluster.collective_launch_s + passes * hops_s, passes * s_per_byte)


def _rings_on_a_chip(group: GroupShape, cluster: Cluster) -> int:
    """Groups whose members alternate on a chip share its links to other chips; within a chip each has its own way."""
    return 1 if group.span <= cluster.devices_per_chip else min(group.stride, cluster.devices_per_chip)


def _send_recv_law(group: GroupShape, cluster: Cluster) -> CollectiveLaw:
    """Every rank sends to the next one of its group; the slowest pair counts, one that crosses nodes if any does."""
    if group.nodes > 1:
        crossing = max(1, group.senders_per_node // group.ranks_per_node)  # one rank of each group in a node
        bandwidth = cluster.inter_node_bandwidth_bytes_per_s(crossing)
        return CollectiveLaw(cluster.collective_launch_s + cluster.inter_node.latency_s, 1 / bandwidth)
    link = cluster.intra_node_link(group.stride + 1)
    rings = min(group.stride, cluster.devices_per_chip) if group.stride + 1 > cluster.devices_per_chip else 1
    return CollectiveLaw(cluster.collective_launch_s + link.latency_s, rings / link.bandwidth_bytes_per_s)
