"""Seconds of a step, at least, of every way to use a mesh: before any of its layouts is priced.

A way stands for all its schedules, microbatches, cuts, recompute sets and orders of axes. What a microbatch costs is
taken from the same degrees without context parallelism: ranks that share a sequence have no less than their share of
that, as tiles are rounded up for each of them and they send more. So a few local shapes bound thousands of meshes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import gcd, inf, prod
from typing import Any, NamedTuple

import numpy as np

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.local_shape import LocalShape
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.mesh import AXIS_ORDER, replicas_of_experts, tensor_ranks_apart
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.parts_bounds import AT_ONCE, Parts, Rows
from autoshard.planner.grid.price import Family
from autoshard.planner.layouts import MeshDrafts, Scheduled

LEAST_ROWS = 1024
"""So many layouts are bounded at once at least: fewer hardly take less time."""

USUAL, ELSEWHERE, EVERYWHERE = range(3)
"""The orders of axes that a bound of a way is for: the way's own, others, or both."""


class Bounds(NamedTuple):
    """Bounds of layouts, however they are cut and whatever they recompute. way, schedule: the places of each.
    step_time_s: infinite where nothing fits. any_order_s: the same in any order of axes, as far as that was asked and
    is known with it, else not a number. memory_bytes: on the fullest rank."""

    way: Array
    schedule: Array
    step_time_s: Array
    any_order_s: Array
    memory_bytes: Array


class Each(NamedTuple):
    """Seconds of a step, at least, of each layout of one way, as if memory had no limit: in its order of axes, in any
    order."""

    own_s: Array
    any_s: Array

    def parted(self, below_s: float, in_any_order: bool) -> tuple[list[int], list[int]]:
        """The places of those that may take less than below_s, and of the others."""
        may = (self.any_s if in_any_order else self.own_s) < below_s
        return may.nonzero()[0].tolist(), (~may).nonzero()[0].tolist()

    def take(self, places: Sequence[int]) -> Each:
        """The bounds at some places."""
        return Each(self.own_s[places], self.any_s[places])


class WaysBounds:
    """Seconds of a step, at least, of ways to use a mesh and of their layouts, as if memory had no limit.

    own_s, any_s: by way, in its order of axes and in any order. least_s: of layouts, by (row, column of a schedule). A
    way has one row or more for each size of its microbatches. where: the orders of axes that each row is for. firsts:
    the first row of each way. columns: by pp, the column of each (schedule, vpp).
    """

    def __init__(
        self,
        ways: Sequence[MeshDrafts],
        least_s: Array,
        where: Array,
        firsts: Array,
        columns: Mapping[int, Mapping[tuple[str, int], int]],
    ):
        self._ways, self._least_s, self._firsts, self._columns = ways, least_s, [*firsts.tolist(), len(where)], columns
        self._is_own, of_rows = where != ELSEWHERE, least_s.min(1)
        self.own_s = np.minimum.reduceat(np.where(self._is_own, of_rows, np.inf), firsts)
        self.any_s = np.minimum.reduceat(of_rows, firsts)
        self._places: dict[tuple[int, int], tuple[Array, Array]] = {}

    def each(self, place: int) -> Each:
        """The layouts of one of the ways, in the order of its schedules."""
        _, way, schedules = self._ways[place]
        key = way.pp, id(schedules)  # many ways share these
        if key not in self._places:
            (sizes,), columns = _sizes(self._ways[place : place + 1]), self._columns[way.pp]
            of_schedule = [(sizes.index(size), columns[name, vpp]) for name, vpp, size in schedules]
            size_of, column_of = np.array(of_schedule).T
            self._places[key] = size_of, column_of
        size_of, column_of = self._places[key]
        rows = slice(*self._firsts[place : place + 2])
        least_s, first_of_size = self._least_s[rows], self._is_own[rows].nonzero()[0]
        if len(first_of_size) == len(least_s):
            own_s = least_s[size_of, column_of]
            return Each(own_s, own_s)
        any_s = np.minimum.reduceat(least_s, first_of_size)
        return Each(least_s[first_of_size[size_of], column_of], any_s[size_of, column_of])


def ways_at_least_s(problem: Problem, ways: Sequence[MeshDrafts]) -> WaysBounds:
    """The bounds of some ways to use a mesh, one or more."""
    sizes_of = _sizes(ways)
    shapes, shape_of = _local_shapes(ways, sizes_of, _near(problem))
    parts, numbers = Parts(problem, shapes, None), _numbers(ways)
    is_moe, rows_of, several = problem.model.is_moe, dict[tuple[object, ...], Array](), list[Array]()
    for (_, way, _), sizes, of_sizes in zip(ways, sizes_of, shape_of, strict=True):
        usual = way.axis_order == AXIS_ORDER and is_moe
        key = id(sizes), id(of_sizes), usual  # many ways share these
        if key not in rows_of:
            rows_of[key] = np.array([row for size in sizes for row in _rows_of(size, of_sizes[size], usual)])
        several.append(rows_of[key])
    of_way = np.repeat(np.arange(len(ways)), counts := [*map(len, several)])
    shape, size_of, where = np.concatenate(several).T
    families: dict[int, dict[int, Sequence[Scheduled]]] = {}
    for one in ways:
        families.setdefault(one.way.pp, {})[id(one.schedules)] = one.schedules
    columns = {
        pp: {names: column for column, names in enumerate(sorted({one[:2] for each in lists.values() for one in each}))}
        for pp, lists in families.items()
    }
    least_s, pp_of = np.full((len(of_way), max(map(len, columns.values()))), np.inf), numbers[of_way, 0]
    for pp, of_family in columns.items():
        of_pp = np.flatnonzero(pp_of == pp)
        of_rows = shape[of_pp], size_of[of_pp], numbers[of_way[of_pp]], where[of_pp] != USUAL
        rows = Rows(problem, *of_rows, np.zeros((len(of_pp), 2)))
        for (schedule, vpp), column in of_family.items():
            least_s[of_pp, column] = parts.steps_s(Family(schedule, pp, vpp), rows)
    return WaysBounds(ways, least_s, where, np.cumsum([0, *counts[:-1]]), columns)


def _rows_of(size: int, places: Places, usual: bool) -> Iterator[tuple[int, int, int]]:
    """(place of a local shape, size of microbatches, the orders of axes it is for) of a way. usual: whether its axes
    are in an order that the bound goes by."""
    own, *others = places
    if others == [own] and not usual:  # where its ranks are would double the work and leave out few
        yield own, size, EVERYWHERE
    else:
        yield own, size, USUAL
        yield from ((other, size, ELSEWHERE) for other in others)


def layout_bounds(
    problem: Problem,
    ways: Sequence[MeshDrafts],
    sets: tuple[str, ...],
    limit_bytes: float,
    in_other_orders: bool = False,
    below_s: float = inf,
    in_any_order: bool = False,
    blocks_s: Sequence[Mapping[int, tuple[float, float]]] | None = None,
) -> Bounds:
    """Bounds of all layouts of some ways to use a mesh, in the order of axes of each way. sets: the recompute sets to
    choose from. limit_bytes: of memory on a rank. in_other_orders: in all other orders instead. below_s: of what takes
    no less in whatever memory it is not asked whether it fits. in_any_order: whether bounds in any order are asked for
    as well. blocks_s: of each way, by size of microbatches, seconds of forward and of backward of the mean block, where
    they are known."""
    sizes_of = _sizes(ways)
    shapes, shape_of = _local_shapes(ways, sizes_of, _near(problem))
    parts, numbers = Parts(problem, shapes, sets), _numbers(ways)
    families: dict[tuple[str, int, int], int] = {}
    known: dict[tuple[int, int], Array] = {}  # of lists of schedules, which many ways share
    of_ways, firsts, places_of = list[Array](), list[int](), list[Places]()
    for (_, way, schedules), of_sizes, sizes in zip(ways, shape_of, sizes_of, strict=True):
        key = way.pp, id(schedules)
        if key not in known:
            codes = [families.setdefault((name, way.pp, vpp), len(families)) for name, vpp, _ in schedules]
            known[key] = np.array([codes, [sizes.index(size) for _, _, size in schedules], range(len(schedules))])
        of_ways.append(known[key])
        firsts.append(len(places_of))
        places_of += [(*of_sizes[size], of_sizes[size][-1])[:3] for size in sizes]
    counts = [len(one.schedules) for one in ways]
    of_way, (code, place, of_schedule) = np.repeat(np.arange(len(ways)), counts), np.hstack(of_ways)
    sized, shapes_of = np.repeat(firsts, counts) + place, np.array(places_of)  # a way with one size of microbatches
    numbers_of = np.repeat(numbers, [len(sizes) for sizes in sizes_of], axis=0)
    size_of = np.array([*chain.from_iterable(sizes_of)])
    in_any = (shapes_of == shapes_of[:, :1]).all(1)[sized] & in_any_order
    step_time_s, any_order_s, memory_bytes = np.full((3, len(of_way)), [[np.inf], [np.nan], [0.0]])

    least_s = np.zeros((len(size_of), 2))
    if blocks_s is not None:
        least_s[:] = [of[size] for of, sizes in zip(blocks_s, sizes_of, strict=True) for size in sizes]

    def rows_in(order: int, elsewhere: bool) -> Rows:
        return Rows(problem, shapes_of[:, order], size_of, numbers_of, np.full(len(size_of), elsewhere), least_s)

    others = rows_in(1, True)
    for order in (1, 2) if in_other_orders else (0,):
        rows = rows_in(order, in_other_orders)
        asked = order < 2 or shapes_of[sized, 1] != shapes_of[sized, 2]
        for names, number in families.items():
            family, alike = Family(*names), np.flatnonzero((code == number) & asked)
            at_once = max(LEAST_ROWS, AT_ONCE // family.pp)
            for begin in range(0, len(alike), at_once):
                some = alike[begin : begin + at_once]
                of_some = rows.take(sized[some])
                both = (of_some, others.take(sized[some])) if in_any[some].any() else (of_some,)
                (seconds, *others_s), memory_bytes[some] = parts.fitted_below(family, both, limit_bytes, below_s)
                if others_s:
                    any_order_s[some] = np.where(in_any[some], np.minimum(seconds, others_s[0]), np.nan)
                step_time_s[some] = np.minimum(step_time_s[some], seconds)
    return Bounds(of_way, of_schedule, step_time_s, any_order_s, memory_bytes)


def _numbers(ways: Sequence[MeshDrafts]) -> Array:
    """The numbers of `Rows`, a row for each way: pp; dp; of it, the ranks that share what ZeRO shards; cp; ep, of cp x
    dp alone; zero; the place of its kind of context parallelism in CONTEXT_PARALLEL. Then strides in the way's order of
    axes, 0 where there is no single one: between neighbours along pp and cp, and of the ranks that share what ZeRO
    shards, of what experts do not have and of experts. The last one is the same for ways that send the same weights and
    gradients among the same ranks."""
    kinds = {name: place for place, name in enumerate(CONTEXT_PARALLEL)}
    rows, known = [], dict[tuple[object, ...], int]()
    for _, way, _ in ways:
        shard, ep = way.dp // way.dp_replicate, way.ep // tensor_ranks_apart(way.tp, way.etp)
        strides, stride = dict[str, int](), 1
        for axis in reversed(way.axis_order):
            strides[axis], stride = stride, stride * getattr(way, axis)
        cp, dp = strides["cp"], strides["dp"]
        adjacent = way.cp == 1 or shard == 1 or dp == cp * way.cp or (cp == dp * way.dp and way.dp_replicate == 1)
        together = (dp if way.cp == 1 else cp if shard == 1 else min(cp, dp)) if adjacent else 0
        of_experts = dp * max(1, ep // way.cp) if way.ep > 1 else together
        sends = way.tp, way.pp, shard, way.cp, way.ep, way.etp, way.zero, together, of_experts
        alike, placed = known.setdefault(sends, len(known)), (strides["pp"], cp, together, of_experts)
        rows.append((way.pp, way.dp, shard, way.cp, ep, way.zero, kinds[way.context_parallel], *placed, alike))
    return np.array(rows)


Places = tuple[int, ...]
"""A local shape in a way's own order of axes, and then in one or two kinds of orders in which other ranks are
neighbours."""


def _local_shapes(
    ways: Sequence[MeshDrafts], sizes_of: Sequence[tuple[int, ...]], near: int
) -> tuple[list[LocalShape], list[dict[int, Places]]]:
    """(local shapes without context parallelism; by way, their places for each size of a microbatch that it or another
    one alike has). sizes_of: of each way, as `_sizes` has them. near: as of `_stride`.

    In the usual order ranks that exchange tokens of experts are as far from each other as tensor and context
    parallelism are wide, and in any one as replicas are. Where the order is not known they are inside of
    tensor-parallel ranks, which are apart then, or outside of them. Placements say of which numbers the strides are
    multiples, and how many ranks exchange tokens.
    """
    shapes: dict[tuple[Any, ...], int] = {}  # by the fields of a LocalShape
    known: dict[tuple[object, ...], dict[int, Places]] = {}
    shape_of = []
    for (_, way, _), sizes in zip(ways, sizes_of, strict=True):
        # ranks that exchange tokens: those of cp, and of tp with experts of their own, gather them
        apart = replicas_of_experts(way.ep, way.cp, tensor_ranks_apart(way.tp, way.etp))
        inside, outside = (apart, 1), (1, way.tp)
        strides = [(1, way.tp * way.cp), inside, *((outside,) * (way.cp > 1 or way.pp > 1))]
        if apart == 1:
            strides = [(1, 1), (1, 1)]
        elif way.tp == 1:
            strides = [(1, way.cp if way.axis_order == AXIS_ORDER else _stride(way, "dp", near)), (1, 1)]
        elif way.axis_order != AXIS_ORDER:
            strides[0] = (1, 1) if way.etp else (_stride(way, "tp", near), _stride(way, "dp", near))
        key = (way.tp, way.ep, way.etp, apart, *strides, way.sequence_parallel, way.attention_kernel)
        places = known.setdefault(key, {})
        for size in sizes:
            if size not in places:
                alone = (way.tp, 1, way.ep, size, way.sequence_parallel, way.attention_kernel, UNUSED, ())
                placements = [(("tp", tp), ("ep", ep), ("size", apart)) for tp, ep in strides]
                places[size] = tuple(shapes.setdefault((*alone, one, way.etp), len(shapes)) for one in placements)
        shape_of.append(places)
    return [LocalShape(*fields) for fields in shapes], shape_of


def _near(problem: Problem) -> int:
    """Devices among which links are faster than those of the network. 1 where the axes of a mesh need not fill nodes
    and domains evenly: ranks that are further from each other may then be better off."""
    cluster = problem.cluster
    near = cluster.devices_per_node * cluster.nodes_per_domain
    return near if near.bit_count() == cluster.world_size.bit_count() == 1 else 1


def _stride(way: Draft, axis: str, near: int) -> int:
    """A number of which the strides along an axis are multiples, in the way's order of axes: the largest one that
    divides `near`, as further away all are alike."""
    inner = way.axis_order[way.axis_order.index(axis) + 1 :]
    return gcd(prod(getattr(way, one) for one in inner), near)


def _sizes(ways: Sequence[MeshDrafts]) -> list[tuple[int, ...]]:
    """The different sizes of microbatches of each way."""
    known: dict[int, tuple[int, ...]] = {}  # many ways share their schedules
    for _, _, schedules in ways:
        if id(schedules) not in known:
            known[id(schedules)] = tuple(dict.fromkeys(size for _, _, size in schedules))
    return [known[id(schedules)] for _, _, schedules in ways]
