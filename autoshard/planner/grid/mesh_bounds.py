"""Seconds of a step, at least, of every way to use a mesh: before any of its layouts is priced.

A way stands for all its schedules, microbatches, cuts, recompute sets and orders of axes. What a microbatch costs is
taken from the same degrees without context parallelism: ranks that share a sequence have no less than their share of
that, as tiles are rounded up for each of them and they send more. So a few local shapes bound thousands of meshes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from autoshard.backends.rules import Problem, divisors
from autoshard.cost.collectives import CollectiveLaw, collective_law, group_shape
from autoshard.cost.program import LawOf
from autoshard.cost.stage import LocalShape, local_shape, stage_mesh
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.layout.context_parallel import UNUSED
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.price import Family
from autoshard.planner.grid.unit_costs import as_columns, mean_columns, part_numbers, unit_programs
from autoshard.planner.grid.work_bounds import by_work_at_least_s
from autoshard.planner.layouts import MeshDrafts
from autoshard.spec.cluster import Cluster

ROUNDING = 1e-9
"""Share of a step by which a bound may be off for rounding."""


def ways_at_least_s(problem: Problem, ways: Sequence[MeshDrafts]) -> Array:
    """Seconds of a step, by way."""
    least = np.full(len(ways), np.inf)
    if not ways:
        return least
    rows, shapes = _rows(ways)
    parts = _Parts(problem, list(shapes))
    pp_of = np.array([one.way.pp for one in ways])[rows[:, 0]]
    for pp in np.unique(pp_of).tolist():
        of_pp = rows[pp_of == pp]
        families = {schedule[:2] for place in np.unique(of_pp[:, 0]).tolist() for schedule in ways[place].schedules}
        for schedule, vpp in sorted(families):
            seconds = parts.steps_s(Family(schedule, pp, vpp), of_pp[:, 1:])
            np.minimum.at(least, of_pp[:, 0], seconds)
    return least * (1 - ROUNDING)


def _rows(ways: Sequence[MeshDrafts]) -> tuple[Array, dict[LocalShape, int]]:
    """((way, local shape without context parallelism, sequences a microbatch, replicas, cp) of every way and size; the
    places of these shapes)."""
    shapes: dict[LocalShape, int] = {}
    keys: dict[tuple[object, ...], int] = {}
    sizes_of: dict[int, list[int]] = {}
    rows = []
    for place, (_, way, schedules) in enumerate(ways):
        if id(schedules) not in sizes_of:
            sizes_of[id(schedules)] = list(dict.fromkeys(size for _, _, size in schedules))
        for size in sizes_of[id(schedules)]:
            key = (way.tp, way.ep, way.sequence_parallel, way.attention_kernel, size)
            if key not in keys:
                draft = way._replace(cp=1, context_parallel=UNUSED, microbatch_size=size, axis_order=AXIS_ORDER)
                keys[key] = shapes.setdefault(local_shape(draft), len(shapes))
            rows.append((place, keys[key], size, way.dp, way.cp))
    return np.array(rows), shapes


class _Parts:
    """Blocks and ends of local shapes, nothing recomputed, whatever the order of axes."""

    def __init__(self, problem: Problem, shapes: list[LocalShape]):
        self._problem = problem
        laws = lru_cache(maxsize=None)(lambda shape: _best_laws(problem, shape))
        numbers = part_numbers(problem, shapes, (NO_RECOMPUTE,), laws=laws)
        columns, model = as_columns(problem, shapes, numbers), problem.model
        counts = [np.full(1, count) for _, count in model.kind_counts(0, model.num_hidden_layers)]
        block = mean_columns(columns.blocks, counts) if len(model.kinds) > 1 else columns.blocks[0]
        every = np.arange(len(shapes))
        parts = (block, *columns.ends(every, False)), (block, *columns.ends(every, True))
        self._apart_s, self._together_s = (
            np.array([part.forward_s + part.backward_s for part in several]) for several in parts
        )
        accumulation_s = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        self._sums_s = accumulation_s * np.array([_parameters(problem, shape) for shape in shapes]).T

    def steps_s(self, family: Family, rows: Array) -> Array:
        """Seconds of a step, at least, by row of `_rows` without the way."""
        shape, size, dp, cp = rows.T
        seconds = self._together_s if family.pp == 1 else self._apart_s
        block_s, first_s, last_s = seconds[:, shape] / cp + self._sums_s[:, shape]
        m = self._problem.training.global_batch_size // (dp * size)
        return by_work_at_least_s(self._problem, family, m, block_s, (first_s, last_s))


def _parameters(problem: Problem, shape: LocalShape) -> tuple[float, float, float]:
    """On a rank: of the mean block, of embedding and head; where one rank has both they may share a table, so that
    only the larger one counts."""
    units, model = unit_programs(problem, shape), problem.model
    counts = [count for _, count in model.kind_counts(0, model.num_hidden_layers)]
    blocks = [sum(block.parameters.values()) for block in units.blocks]
    block = sum(count * of_each for count, of_each in zip(counts, blocks, strict=True)) / model.num_hidden_layers
    first, last = (float(sum(end.parameters.values())) for end in (units.embedding, units.head))
    return (block, max(first, last), 0.0) if units.tied is not None else (block, first, last)


def _best_laws(problem: Problem, shape: LocalShape) -> LawOf:
    """Laws of collectives among as many ranks as a stage of this local shape has along axes, wherever these are."""
    degrees = dict(stage_mesh(problem.model, problem.cluster, shape).stage_axes)

    def law_of(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
        if "dp" in axes:  # there may be fewer replicas
            return CollectiveLaw(0.0, 0.0)
        return _best_law(problem.cluster, kind, prod(degrees.get(axis, 1) for axis in axes))

    return law_of


@lru_cache(maxsize=4096)
def _best_law(cluster: Cluster, kind: str, size: int) -> CollectiveLaw:
    """The least latency and the least seconds a byte of groups of this size at any stride."""
    laws = [
        collective_law(kind, group_shape((("pp", outside), (name, size), ("cp", stride)), (name,), cluster), cluster)
        for stride in divisors(cluster.world_size // size)
        for outside in (cluster.world_size // size // stride,)
        for name in ("dp", "tp")
    ]
    return CollectiveLaw(min(law.latency_s for law in laws), min(law.seconds_per_byte for law in laws))
