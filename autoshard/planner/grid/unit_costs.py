"""What stages are made of, in columns: an entry for each local shape under each recompute set.

The numbers of `cost.stage.stage_parts`. Here a program is partitioned once for all microbatch sizes, and a recompute
set costs two sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.collectives import CollectiveLaw, collective_law, group_shape
from autoshard.cost.program import ProgramWork, Recompute
from autoshard.cost.stage import LocalShape, hidden_bytes, mesh_order, stage_mesh, stage_work
from autoshard.graph.recompute import NO_RECOMPUTE, is_recomputed
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.microbatch import UnitColumns, unit_columns
from autoshard.planner.grid.steps import Asked, Law, StepSeconds, step_seconds
from autoshard.spec.cluster import Device
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

PARTS = ("block", "embedding", "head", "tied")


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


def stage_columns(problem: Problem, shapes: Sequence[LocalShape], recompute: tuple[str, ...]) -> StageColumns:
    """Entry i * len(recompute) + j: shape i under set j."""
    return as_columns(problem, shapes, part_numbers(problem, shapes, recompute))


def as_columns(problem: Problem, shapes: Sequence[LocalShape], numbers: Array) -> StageColumns:
    """numbers: as `part_numbers`."""
    rows = numbers.shape[0] * numbers.shape[1]
    columns = np.ascontiguousarray(numbers.reshape(rows, len(PARTS), -1).transpose(1, 2, 0))
    hidden = np.array([hidden_bytes(problem.model, problem.training, shape) for shape in shapes], dtype=float)
    block, embedding, head, tied = (PartColumns(*part) for part in columns)
    return StageColumns(block, embedding, head, tied, np.repeat(hidden, numbers.shape[1]))


@dataclass(frozen=True, eq=False)
class Units:
    """The programs of one local shape, for one sequence a microbatch. first: embedding and a block behind it."""

    block: ProgramWork
    first: ProgramWork
    embedding: ProgramWork
    head: ProgramWork
    tied: ProgramWork | None

    @cached_property
    def columns(self) -> UnitColumns:
        """Of block, first, embedding, head and, where there is one, tied."""
        works = (self.block, self.first, self.embedding, self.head, self.tied)
        return unit_columns([work for work in works if work is not None])


def unit_programs(problem: Problem, shape: LocalShape) -> Units:
    """Of this local shape, whatever the size of its microbatches and wherever its ranks are."""
    return _unit_programs(*_whatever_the_hardware(problem), replace(shape, microbatch_size=1, placement=()))


def _whatever_the_hardware(problem: Problem) -> tuple[ModelSpec, TrainingSpec, bool]:
    """What programs depend on: neither on the batch nor on what devices and links can do."""
    return problem.model, _of_any_batch(problem.training), problem.cluster.platform.kv_heads_innermost


@lru_cache(maxsize=64)
def _of_any_batch(training: TrainingSpec) -> TrainingSpec:
    return replace(training, global_batch_size=1)


@lru_cache(maxsize=1024)
def _unit_programs(model: ModelSpec, training: TrainingSpec, kv_inner: bool, shape: LocalShape) -> Units:
    sizes = (training.sequence_length, training.expert_capacity_factor, training.precision.compute_dtype)

    def unit(layers: int, first: bool, last: bool) -> ProgramWork:
        return stage_work(model, *sizes, shape, kv_inner, layers, first, last)

    tied = unit(0, True, True) if model.tie_word_embeddings else None
    return Units(unit(1, False, False), unit(1, True, False), unit(0, True, False), unit(0, False, True), tied)


def part_numbers(
    problem: Problem,
    shapes: Sequence[LocalShape],
    recompute: tuple[str, ...],
    device: Device | None = None,
    laws: Callable[[LocalShape], Law] | None = None,
) -> Array:
    """(shape, set, PARTS, number as in PartColumns). device, laws: the cluster's, unless given."""
    places: dict[LocalShape, list[int]] = {}
    for place, shape in enumerate(shapes):
        places.setdefault(replace(shape, microbatch_size=1), []).append(place)
    units, law_of = [unit_programs(problem, shape) for shape in places], laws or partial(stage_law, problem)
    asked = [
        Asked(one.columns, np.array([shapes[place].microbatch_size for place in own]), law_of(shape))
        for one, (shape, own) in zip(units, places.items(), strict=True)
    ]
    device = device or problem.cluster.device
    priced = step_seconds(asked, device, device.peak_flops_per_s(problem.training.precision.compute_dtype))
    found: Array = np.zeros((len(shapes), len(recompute), len(PARTS), len(PartColumns._fields)))
    for one, own, asking, seconds in zip(units, places.values(), asked, priced, strict=True):
        found[own] = _numbers(asking, seconds, _sets_columns(one, recompute))
    return found


class SetColumns(NamedTuple):
    """What recompute sets do to the units of one local shape, for one sequence a microbatch.

    programs: of PARTS, the last one where there is one. in_part: (step, part), 1 where it is one of its steps. again:
    (step, set), 1 where a block repeats it; more: of what the first block repeats 1, of what others do -1.
    kept_bytes, replay_bytes: (set, part).
    """

    programs: list[int]
    in_part: Array
    again: Array
    more: Array
    kept_bytes: Array
    replay_bytes: Array


@lru_cache(maxsize=2048)
def _sets_columns(units: Units, recompute: tuple[str, ...]) -> SetColumns:
    ends = [end for end in (units.embedding, units.head, units.tied) if end is not None]
    starts, programs = units.columns.first_step, [0, *range(2, 2 + len(ends))]
    in_part = np.zeros((starts[-1], len(programs)))
    for part, program in enumerate(programs):
        in_part[starts[program] : starts[program + 1], part] = 1.0
    again, more = np.zeros((2, starts[-1], len(recompute)))
    kept_bytes, replay_bytes = np.zeros((2, len(recompute), len(programs)))
    opening = units.block.program.graph.operators[0]
    of_ends = [end.recompute(NO_RECOMPUTE) for end in ends]
    for place, name in enumerate(recompute):
        of_block = units.block.recompute(name)
        kept_bytes[place] = [one.kept_bytes for one in (of_block, *of_ends)]
        replay_bytes[place] = [one.replay_bytes for one in (of_block, *of_ends)]
        _mark(again[:, place], of_block, starts[0], 1.0)
        if not is_recomputed(opening, name):
            continue
        behind = units.first.recompute(name)
        _mark(more[:, place], behind, starts[1], 1.0)
        _mark(more[:, place], of_block, starts[0], -1.0)
        for part in (1, 3)[: len(ends) - 1]:  # what begins with the embedding
            kept_bytes[place, part] += behind.kept_bytes - of_block.kept_bytes - of_ends[0].kept_bytes
            replay_bytes[place, part] = behind.replay_bytes
    return SetColumns(programs, in_part, again, more, kept_bytes, replay_bytes)


def _mark(column: Array, recompute: Recompute, first_step: int, value: float) -> None:
    for start, stop in recompute.repeated:
        column[first_step + start : first_step + stop] = value


def _numbers(asked: Asked, seconds: StepSeconds, sets: SetColumns) -> Array:
    """(microbatch, set, PARTS, number)."""
    sequences, columns = asked.sequences[:, None, None], asked.columns
    forward_s, backward_s = seconds.forward.sum(2), seconds.backward.sum(2)
    more_s = np.maximum(0.0, np.matmul(sets.more.T, seconds.forward)).sum(2)  # kind by kind
    shape = (len(asked.sequences), *sets.kept_bytes.shape)
    back_s = np.broadcast_to((backward_s @ sets.in_part)[:, None], shape).copy()
    back_s[..., 0] += forward_s @ sets.again
    back_s[..., 1::2] += more_s[..., None]
    numbers = (
        (forward_s @ sets.in_part)[:, None],
        back_s,
        sequences * sets.kept_bytes,
        sequences * sets.replay_bytes,
        columns.working_bytes_of(sequences)[..., sets.programs],
        sequences * columns.waiting_bytes[sets.programs],
        seconds.weight_gradients_s[:, None, sets.programs],
    )
    found = np.zeros((*shape[:2], len(PARTS), len(numbers)))
    for place, one in enumerate(numbers):
        found[:, :, : shape[2], place] = one
    return found


def stage_law(problem: Problem, shape: LocalShape) -> Law:
    """Of what ranks of a stage send each other."""
    cluster = problem.cluster
    order = mesh_order(stage_mesh(problem.model, cluster, shape))

    def law(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
        return collective_law(kind, group_shape(order, axes, cluster), cluster)

    return law
