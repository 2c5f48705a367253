"""Laws of collectives at their best, wherever their ranks are: before an order of axes is chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from autoshard.backends.rules import Problem, divisors
from autoshard.cost.collectives import CollectiveLaw, GroupShape, collective_law, possible_shapes
from autoshard.cost.local_shape import LocalShape, stage_mesh
from autoshard.cost.program import LawOf
from autoshard.planner.grid.arrays import Array
from autoshard.spec.cluster import Cluster


def best_laws(
    cluster: Cluster,
    kinds: Sequence[str],
    sizes: Array,
    beside: Array | int = 1,
    multiples: Array | int = 1,
    along_two: bool = False,
    strides: Array | int = 0,
) -> list[CollectiveLaw]:
    """The least latency and the least seconds a byte of each kind of collective among so many ranks, by row. beside:
    other ranks, of tensor parallelism. multiples: of these the strides between the ranks are multiples. along_two:
    whether the ranks may lie along two axes, with other axes between. strides: between ranks along one axis or several
    next to each other; 0 where they are not known."""
    placed = np.asarray(strides) > 0
    columns = np.broadcast_arrays(sizes, np.where(placed, strides, multiples), beside, placed)
    shape = (cluster.world_size + 1, cluster.world_size + 1, int(columns[2].max()) + 1, 2)
    different, inverse = np.unique(np.ravel_multi_index(tuple(columns), shape), return_inverse=True)
    places = [*zip(*(column.tolist() for column in np.unravel_index(different, shape)), strict=True)]
    found = []
    for kind in kinds:
        laws = [
            placed_law(cluster, kind, *place) if is_placed else best_law(cluster, kind, *place, along_two)
            for *place, is_placed in places
        ]
        latency_s, s_per_byte = np.array([(law.latency_s, law.seconds_per_byte) for law in laws]).T
        found.append(CollectiveLaw(latency_s[inverse], s_per_byte[inverse]))
    return found


def stage_laws_at_best(problem: Problem, shape: LocalShape) -> LawOf:
    """Laws of collectives among as many ranks as a stage of this local shape has along axes, wherever these are but for
    what its placement says: multiples of which strides they have."""
    degrees = dict(stage_mesh(problem.model, problem.cluster, replace(shape, placement=())).stage_axes)
    strides = dict(shape.placement)

    def law_of(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
        if "dp" in axes:  # there may be fewer replicas
            return CollectiveLaw(0.0, 0.0)
        size = prod(strides["size"] if axis == "ep" else degrees.get(axis, 1) for axis in axes)
        if "ep" not in axes:
            return best_law(problem.cluster, kind, size, strides["tp"], 1)
        return best_law(problem.cluster, kind, size, strides["ep"] if len(axes) == 1 else 1, shape.tp)

    return law_of


@lru_cache(maxsize=4096)
def best_law(cluster: Cluster, kind: str, size: int, multiple: int, tp: int, along_two: bool = False) -> CollectiveLaw:
    """The least latency and the least seconds a byte of groups of this size at any stride, a multiple of one.

    tp: tensor-parallel ranks beside the group, inside of its stride or outside of it; 1 for a group of these.
    along_two: whether the ranks may lie along two axes, with other axes between.
    """
    world, meshes = cluster.world_size // size, []
    for stride in divisors(world):
        if stride % multiple == 0 and stride % tp == 0:
            name = "dp" if tp > 1 else "tp"
            meshes.append((("pp", world // stride), (name, size), ("cp", stride // tp), ("tp1", tp)))
        if stride % multiple == 0 and world // stride % tp == 0:
            meshes.append((("pp", world // stride // tp), ("tp1", tp), ("dp", size), ("cp", stride)))
    shapes = {
        shape
        for mesh in meshes
        for name in ("dp", "tp")
        if name in dict(mesh)
        for shape in possible_shapes(mesh, (name,), cluster)
    }
    if along_two:
        shapes.update([other for shape in shapes for other in _along_two(shape, cluster)])
    return _least(kind, shapes, cluster)


@lru_cache(maxsize=4096)
def placed_law(cluster: Cluster, kind: str, size: int, stride: int, tp: int) -> CollectiveLaw:
    """The least latency and the least seconds a byte of groups of this size at this stride, whose ranks lie along one
    axis or several next to each other, whatever the axes beside it are. tp: tensor-parallel ranks beside the group."""
    inner, outer = stride, cluster.world_size // size // stride
    inside = tp if inner % tp == 0 else 1
    mesh = (("pp", outer * inside // tp), ("tp1", tp // inside), ("dp", size), ("cp", inner // inside), ("tp", inside))
    return _least(kind, possible_shapes(mesh, ("dp",), cluster), cluster)


def _least(kind: str, shapes: Collection[GroupShape], cluster: Cluster) -> CollectiveLaw:
    """The least latency and the least seconds a byte of groups of these shapes; 0 where there are none."""
    laws = [collective_law(kind, shape, cluster) for shape in shapes]
    return CollectiveLaw(
        min((law.latency_s for law in laws), default=0.0), min((law.seconds_per_byte for law in laws), default=0.0)
    )


def _along_two(shape: GroupShape, cluster: Cluster) -> Iterator[GroupShape]:
    """Groups of as many ranks with the same stride, but of another axis between them: fewer are then in a node, or they
    span more of it, over a link that may be faster."""
    for local in divisors(shape.size):
        if local > shape.ranks_per_node:
            return
        nodes, span = shape.size // local, 1 + (local - 1) * shape.stride
        if nodes > cluster.nodes:
            continue
        wider = [(link.bandwidth_bytes_per_s, devices) for devices, link in cluster.intra_node if devices > span]
        spans = {span, max(wider)[1]} if wider and local > 1 else {span}
        for near in {1, max(near for near in divisors(nodes) if near <= cluster.nodes_per_domain)}:
            for reached in spans:
                yield GroupShape(shape.size, local, nodes, shape.stride, reached, shape.senders_per_node, near)
