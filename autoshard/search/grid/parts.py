"""What stages are made of, in columns: an entry for each local shape under each recompute set.

The numbers of `cost.stage.stage_parts`. Here a program is partitioned once for all microbatch sizes, and a recompute
set costs two sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from autoshard.cost.collectives import CollectiveLaw, collective_law, group_shape
from autoshard.cost.program import ProgramWork
from autoshard.cost.stage import LocalShape, mesh_order, stage_mesh, stage_work
from autoshard.graph.recompute import is_recomputed
from autoshard.search.grid.microbatch import UnitWork, unit_work
from autoshard.search.grid.pipeline import Array
from autoshard.search.grid.steps import Law, StepSeconds, step_seconds
from autoshard.search.rules import Problem
from autoshard.spec.cluster import Device
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES, TrainingSpec

Numbers = tuple[float, float, float, float, float, float, float]
"""In the order of PartColumns."""
NOTHING: Numbers = (0.0,) * 7


class PartColumns(NamedTuple):
    """Of a block or an end of the model, for one microbatch on one rank: seconds and bytes, as in cost.program.Part."""

    forward_s: Array
    backward_s: Array
    kept_bytes: Array
    replay_bytes: Array
    working_bytes: Array
    weights_waiting_bytes: Array
    weight_gradients_s: Array

    def take(self, rows: Array) -> PartColumns:
        return PartColumns(*(column[rows] for column in self))


class StageColumns(NamedTuple):
    """As cost.stage.Parts. tied: embedding and head on one rank that share their table, else zeros."""

    block: PartColumns
    embedding: PartColumns
    head: PartColumns
    tied: PartColumns
    hidden_bytes: Array

    def ends(self, rows: Array, together: bool) -> tuple[PartColumns, PartColumns]:
        """(of the first rank, of the last rank). together: on one rank, where ends that are tied are one part."""
        if together and self.tied.forward_s.any():
            first = self.tied.take(rows)
            return first, PartColumns(*(np.zeros_like(column) for column in first))
        return self.embedding.take(rows), self.head.take(rows)


def stage_columns(problem: Problem, shapes: list[LocalShape], recompute: tuple[str, ...]) -> StageColumns:
    """Entry i * len(recompute) + j: shape i under set j."""
    return as_columns(problem, shapes, recompute, shape_rows(problem, shapes, recompute))


def as_columns(
    problem: Problem,
    shapes: Sequence[LocalShape],
    recompute: tuple[str, ...],
    rows_of: Sequence[Sequence[tuple[Numbers, ...]]],
) -> StageColumns:
    """rows_of: each shape, for each set."""
    rows = [row for of_shape in rows_of for row in of_shape]
    block, embedding, head, tied = (PartColumns(*np.array(part, dtype=float).T) for part in zip(*rows, strict=True))
    hidden = [_hidden_bytes(problem, shape) for shape in shapes for _ in recompute]
    return StageColumns(block, embedding, head, tied, np.array(hidden, dtype=float))


def _hidden_bytes(problem: Problem, shape: LocalShape) -> int:
    inside = shape.cp * (shape.tp if shape.sequence_parallel else 1)
    elements = shape.microbatch_size * problem.training.sequence_length * problem.model.hidden_size // inside
    return elements * DTYPE_BYTES[problem.training.precision.compute_dtype]


class Units(NamedTuple):
    """The programs of one local shape, for one sequence a microbatch. first: embedding and a block behind it."""

    block: UnitWork
    first: UnitWork
    embedding: UnitWork
    head: UnitWork
    tied: UnitWork | None


def unit_programs(problem: Problem, shape: LocalShape) -> Units:
    """shape: of one sequence a microbatch."""
    return _unit_programs(*_whatever_the_hardware(problem), shape)


def _whatever_the_hardware(problem: Problem) -> tuple[ModelSpec, TrainingSpec, bool]:
    """What programs depend on: neither on the batch nor on what devices and links can do."""
    return problem.model, _of_any_batch(problem.training), problem.cluster.layout_rules != "trn2"


@lru_cache(maxsize=64)
def _of_any_batch(training: TrainingSpec) -> TrainingSpec:
    return replace(training, global_batch_size=1)


@lru_cache(maxsize=1024)
def _unit_programs(model: ModelSpec, training: TrainingSpec, kv_inner: bool, shape: LocalShape) -> Units:
    def unit(layers: int, first: bool, last: bool) -> UnitWork:
        dtype = training.precision.compute_dtype
        sizes = (training.sequence_length, training.expert_capacity_factor, dtype)
        one, two = (
            stage_work(model, *sizes, replace(shape, microbatch_size=count), kv_inner, layers, first, last)
            if count == 1 or last
            else None
            for count in (1, 2)
        )
        assert one is not None
        return unit_work(one, two)

    tied = unit(0, True, True) if model.tie_word_embeddings else None
    return Units(unit(1, False, False), unit(1, True, False), unit(0, True, False), unit(0, False, True), tied)


@lru_cache(maxsize=4096)
def _works(
    model: ModelSpec, training: TrainingSpec, kv_inner: bool, shape: LocalShape, weights_apart: bool
) -> tuple[ProgramWork | None, ...]:
    """Of the units of this shape, in their order."""
    units = _unit_programs(model, training, kv_inner, replace(shape, microbatch_size=1))
    return tuple(None if unit is None else unit.times(shape.microbatch_size, weights_apart) for unit in units)


def shape_rows(
    problem: Problem,
    shapes: Sequence[LocalShape],
    recompute: tuple[str, ...],
    device: Device | None = None,
    law: Law | None = None,
) -> list[list[tuple[Numbers, ...]]]:
    """For each shape and set: block, embedding, head, tied. device, law: the cluster's, unless given."""
    base, weights_apart, device = (
        _whatever_the_hardware(problem),
        problem.backend != "nxd",
        device or problem.cluster.device,
    )
    works = [_works(*base, shape, weights_apart) for shape in shapes]
    laws = [law or _laws(problem, shape) for shape in shapes]
    peak = device.peak_flops_per_s(problem.training.precision.compute_dtype)
    asked = [(work, law) for several, law in zip(works, laws, strict=True) for work in several if work is not None]
    priced = iter(step_seconds(asked, device, peak))
    rows = []
    for shape, several in zip(shapes, works, strict=True):
        seconds = [None if work is None else next(priced) for work in several]
        units = unit_programs(problem, replace(shape, microbatch_size=1))
        rows.append(_rows(units, shape.microbatch_size, several, seconds, recompute))
    return rows


def _rows(
    units: Units,
    count: int,
    works: Sequence[ProgramWork | None],
    seconds: Sequence[StepSeconds | None],
    recompute: tuple[str, ...],
) -> list[tuple[Numbers, ...]]:
    """For each set. count: sequences of a microbatch."""
    block, first, *_ = seconds
    work = works[0]
    assert block is not None and first is not None and work is not None
    embedding, head, tied = (
        NOTHING if asked is None or spent is None or unit is None else _end(asked, spent, unit, count)
        for asked, spent, unit in zip(works[2:], seconds[2:], units[2:], strict=True)
    )
    opening = units.block.work.program.graph.operators[0]
    sums_block = [*accumulate(block.forward.sum(1).tolist(), initial=0.0)]
    forward_s, backward_s = sums_block[-1], float(block.backward.sum())
    rows: list[tuple[Numbers, ...]] = []
    for one in recompute:
        kept = units.block.work.recompute(one)
        again_s = sum(sums_block[stop] - sums_block[start] for start, stop in kept.repeated)
        of_block: Numbers = (
            forward_s,
            backward_s + again_s,
            count * kept.kept_bytes,
            count * kept.replay_bytes,
            work.working_bytes,
            work.weights_waiting_bytes,
            block.weight_gradients_s,
        )
        if not is_recomputed(opening, one):
            rows.append((of_block, embedding, head, tied))
            continue
        behind = units.first.work.recompute(one)
        more_s = _replayed_more_s(block, kept.repeated, first, behind.repeated)
        more_kept = count * (behind.kept_bytes - kept.kept_bytes) - embedding[2]
        ends: list[Numbers] = [
            (end[0], end[1] + more_s, end[2] + more_kept, count * behind.replay_bytes, *end[4:])
            for end in (embedding, tied)
        ]
        rows.append((of_block, ends[0], head, NOTHING if units.tied is None else ends[1]))
    return rows


def _end(work: ProgramWork, seconds: StepSeconds, unit: UnitWork, count: int) -> Numbers:
    kept = unit.work.recompute("none")
    forward_s, backward_s = float(seconds.forward.sum()), float(seconds.backward.sum())
    bytes_of = (count * kept.kept_bytes, count * kept.replay_bytes, work.working_bytes, work.weights_waiting_bytes)
    return (forward_s, backward_s, *bytes_of, seconds.weight_gradients_s)


def _replayed_more_s(
    block: StepSeconds,
    repeated: tuple[tuple[int, int], ...],
    first: StepSeconds,
    behind: tuple[tuple[int, int], ...],
) -> float:
    """What the block behind the embedding repeats beyond other blocks, kind by kind."""
    of_first, of_block = (
        sum(seconds.forward[start:stop].sum(0) for start, stop in ranges)
        for seconds, ranges in ((first, behind), (block, repeated))
    )
    return float(np.maximum(0.0, of_first - of_block).sum())


def _laws(problem: Problem, shape: LocalShape) -> Law:
    cluster = problem.cluster
    order = mesh_order(stage_mesh(problem.model, cluster, shape))

    def law(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
        return collective_law(kind, group_shape(order, axes, cluster.devices_per_node), cluster)

    return law
