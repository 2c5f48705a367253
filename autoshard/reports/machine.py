"""The mesh on the machine: which rank is which device, who is in its groups, and over which links these talk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoshard.cost.collectives import GroupShape, group_shape
from autoshard.cost.local_shape import mesh_order
from autoshard.layout.mesh import (
    EXPERT_PART_AXES,
    REPLICA_AXES,
    TENSOR_PARALLEL_AXES,
    ZERO_AXES,
    Mesh,
    tensor_ranks_apart,
)
from autoshard.plans.plan import Plan
from autoshard.spec.cluster import Cluster, Link

MOST_DEVICES = 2_048
"""Devices that are drawn: whole nodes from the first on; the others repeat their pattern."""


@dataclass(frozen=True)
class AxisLinks:
    """One axis of the mesh on the machine.

    size: ranks of a group. apart: ranks from one member to the next; on a folded mesh there may be several such
    distances, the smallest comes first. nodes: over how many a group spreads. link: the slowest that it crosses, with
    its bandwidth in bytes per second; what: is sent.
    """

    name: str
    size: int
    apart: tuple[int, ...]
    nodes: int
    link: str
    bandwidth_bytes_per_s: float
    what: str


def axes(plan: Plan) -> tuple[AxisLinks, ...]:
    """The axes with more than one rank, outermost first."""
    order, found, stride = mesh_order(plan.mesh), list[AxisLinks](), 1
    for name, size in reversed(order):
        if size > 1:
            shape = group_shape(order, (name,), plan.cluster)
            link, apart = _link(shape, plan.cluster), _apart(plan.mesh, size, stride)
            found.append(
                AxisLinks(name, size, apart, shape.nodes, link.name, link.bandwidth_bytes_per_s, _what(name, plan))
            )
        stride *= size
    return tuple(reversed(found))


def _what(name: str, plan: Plan) -> str:
    """The words for what ranks send each other along an axis. Experts are spread over several axes at once: tokens go
    along each of them."""
    if name == "pp":
        return "activations of neighbouring stages"
    if name in REPLICA_AXES:
        return "sums of gradients, a shard of them"
    chosen, is_tensor = plan.strategy, name in TENSOR_PARALLEL_AXES
    apart = is_tensor and name not in EXPERT_PART_AXES and tensor_ranks_apart(chosen.tp, chosen.etp) > 1
    sent = {
        "parts of every matrix product": is_tensor,
        "keys and values of parts of a sequence": name == "cp",
        "tokens of experts": name == "ep" or (name == "cp" and chosen.ep > 1) or apart,
        "gradients and updated weights": name in ZERO_AXES,
    }
    return ", ".join(what for what, is_sent in sent.items() if is_sent)


def _apart(mesh: Mesh, size: int, stride: int) -> tuple[int, ...]:
    """Ranks between neighbours along an axis of so many members. stride: places between them, in the mesh's order."""
    fold = mesh.fold
    if fold is None:
        return (stride,)
    places = (place for place in range(mesh.world_size) if place // stride % size < size - 1)
    return tuple(sorted({abs(fold.rank(place + stride) - fold.rank(place)) for place in places}))


def _link(shape: GroupShape, cluster: Cluster) -> Link:
    if shape.nodes == 1:
        return next(link for devices, link in cluster.intra_node if shape.span <= devices)
    near = shape.nodes_per_domain == shape.nodes and cluster.intra_domain is not None
    return cluster.intra_domain if near and cluster.intra_domain is not None else cluster.inter_node


def drawn(plan: Plan) -> dict[str, Any]:
    """The machine as JSON values. order: (axis, size) of all axes, outermost first; a rank's place along each follows
    from it. fold: the order of a node's rows, or null."""
    cluster, fold = plan.cluster, plan.mesh.fold
    shown = max(1, min(cluster.nodes, MOST_DEVICES // cluster.devices_per_node))
    return {
        "nodes": cluster.nodes,
        "shown": shown,
        "per_node": cluster.devices_per_node,
        "per_chip": cluster.devices_per_chip,
        "order": mesh_order(plan.mesh),
        "fold": None if fold is None else {"per_node": fold.devices_per_node, "rows": fold.row_order},
        "links": {axis.name: axis.link for axis in axes(plan)},
    }
