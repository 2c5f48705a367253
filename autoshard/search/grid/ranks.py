"""What follows from a mesh alone: parameters on a rank, who shares their optimizer state, and what a step does with
them after its last microbatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.memory import BUCKET_BYTES
from autoshard.cost.shards import Moved, Turns, held_elements, in_turns, moved, zero_axes
from autoshard.cost.stage import LocalShape, mesh_order
from autoshard.cost.step import update_s_per_parameter
from autoshard.layout.mesh import ZERO_AXES, Mesh, build_mesh
from autoshard.models.padding import padded_heads
from autoshard.search.grid.memory import ShardColumns, UnitColumns
from autoshard.search.grid.parts import hidden_bytes, unit_programs
from autoshard.search.rules import Draft, Problem
from autoshard.spec.training import DTYPE_BYTES

Counts = Mapping[tuple[str, ...], int]
"""Elements on one rank, by the axes over which their gradient is summed once a step."""


@dataclass(frozen=True)
class Held:
    """Elements on one rank: all of them, and those whose optimizer state it keeps."""

    parameters: float
    owned: float


class Unit(NamedTuple):
    """Of a block or an end, as cost.shards has it: what a rank holds and what travels in every microbatch."""

    weights: float
    sums: float
    gather_s: float
    again_s: float
    scatter_s: float
    turns: Turns

    @property
    def numbers(self) -> tuple[float, ...]:
        """In the order of UnitColumns."""
        return (self.weights, self.sums, self.gather_s, self.again_s, self.scatter_s, *self.turns)


class RankState:
    """Of the meshes with these degrees. block, first, last: parameters of one block and of the ends of the model."""

    def __init__(self, problem: Problem, mesh: Mesh, shape: LocalShape, zero: int):
        self._cluster, self._precision, self._zero = problem.cluster, problem.training.precision, zero
        self._mesh, self._order = mesh, mesh_order(mesh)
        self._counts = self._counts_of(problem, mesh, shape)
        self._matrices = self._matrices_of(problem, mesh, shape)
        self.block, self.first, self.last = map(self._held, self._counts)
        self.gathers, self.shards = zero == 3, mesh.size(ZERO_AXES)
        self.tied = mesh.pp == 1 and not self._counts[2]
        self.units: tuple[Unit, ...] = ()
        if zero >= 2:
            turns = (self._turns(problem, shape), *(in_turns(one, mesh) for one in self._matrices[1:]))
            self.units = tuple(map(self._unit, range(3), turns))
        self.shares_state = self.shards > 1
        self._update_s = update_s_per_parameter(self._precision, problem.cluster.device)

    def _counts_of(self, problem: Problem, mesh: Mesh, shape: LocalShape) -> tuple[Counts, ...]:
        """Of a block and of the ends."""
        units = unit_programs(problem, shape)
        tied = units.tied if mesh.pp == 1 else None
        return (
            units.block.parameters,
            (tied or units.embedding).parameters,
            {} if tied else units.head.parameters,
        )

    def _matrices_of(self, problem: Problem, mesh: Mesh, shape: LocalShape) -> tuple[Counts, ...]:
        """Of the same, those that travel under ZeRO-2 and -3."""
        units = unit_programs(problem, shape)
        tied = units.tied if mesh.pp == 1 else None
        head: Counts = {} if tied else units.head.matrices
        return units.block.matrices, (tied or units.embedding).matrices, head

    def _turns(self, problem: Problem, shape: LocalShape) -> Turns:
        """Of a block."""
        one = replace(shape, microbatch_size=1)
        return in_turns(
            self._matrices[0], self._mesh, unit_programs(problem, one).block.moments, hidden_bytes(problem, one)
        )

    def moved(self, matrices: Counts) -> Moved:
        return moved(matrices, self._zero, self._precision, self._mesh, self._cluster)

    def _unit(self, place: int, turns: Turns) -> Unit:
        counts, matrices = self._counts[place], self._matrices[place]
        weights, sums = (held_elements(counts, matrices, self._mesh, self._zero >= stage) for stage in (3, 2))
        gather_s, scatter_s = self.moved(matrices)
        looks_up = place == 1 and not self.tied
        again_s = 0.0 if looks_up else gather_s
        return Unit(weights, sums, gather_s, again_s, scatter_s, turns)

    def least_elements(self, stage: int) -> float:
        """Of a block and the head, of what ZeRO shares from this stage on."""
        if self._zero < stage:
            return self.block.parameters + self.last.parameters
        return sum(self.units[place].weights if stage == 3 else self.units[place].sums for place in (0, 2))

    @cache  # noqa: B019  as short-lived as the search that asks
    def hop_s(self, hidden_bytes: float) -> float:
        """Of one microbatch from a stage to the next; as cost.step.hop_s."""
        if self._mesh.pp == 1:
            return 0.0
        return self._time_s("send_recv", ("pp",), hidden_bytes)

    def _held(self, counts: Counts) -> Held:
        if not self._zero:
            return Held(float(sum(counts.values())), float(sum(counts.values())))
        owned = sum(count / self._mesh.size(zero_axes(axes)) for axes, count in counts.items())
        return Held(float(sum(counts.values())), owned)

    @cache  # noqa: B019  as short-lived as the search that asks
    def after_s(self, first_blocks: int, middle_blocks: int, last_blocks: int) -> float:
        """Gradient sums, update and gathering of the rank for which they take longest.

        middle_blocks: the most of a rank without ends, 0 for none.
        """
        if self._mesh.pp == 1:
            return self._rank_s(first_blocks, True, True)
        between = self._rank_s(middle_blocks, False, False) if middle_blocks else 0.0
        return max(self._rank_s(first_blocks, True, False), between, self._rank_s(last_blocks, False, True))

    def _rank_s(self, blocks: int, first: bool, last: bool) -> float:
        counts = _added_up(self._counts, blocks, first, last)
        matrices = _added_up(self._matrices, blocks, first, last) if self.units else {}
        reduce_bytes, parameter_bytes = (
            DTYPE_BYTES[dtype] for dtype in (self._precision.gradient_reduce_dtype, self._precision.parameter_dtype)
        )
        seconds = owned = 0.0
        scattered: dict[tuple[str, ...], int] = {}
        gathered: dict[tuple[str, ...], int] = {}
        for axes, count in counts.items():
            among = zero_axes(axes)
            owners = self._mesh.size(among)
            travels = matrices.get(axes, 0) if owners > 1 else 0
            scattered[among] = scattered.get(among, 0) + count - travels
            gathered[among] = gathered.get(among, 0) + count - (travels if self.gathers else 0)
            owned += count / owners if self._zero else count
            if within := tuple(axis for axis in axes if axis not in among):
                seconds += self._buckets_s("all_reduce", within, (count - travels + travels / owners) * reduce_bytes)
        for axes, count in scattered.items():
            seconds += self._buckets_s("reduce_scatter" if self._zero else "all_reduce", axes, count * reduce_bytes)
            if self._zero:
                seconds += self._buckets_s("all_gather", axes, gathered[axes] * parameter_bytes)
        return seconds + owned * self._update_s

    def _buckets_s(self, kind: str, axes: tuple[str, ...], size: float) -> float:
        full, rest = divmod(size, BUCKET_BYTES)
        return full * self._time_s(kind, axes, BUCKET_BYTES) + self._time_s(kind, axes, rest)

    def _time_s(self, kind: str, axes: tuple[str, ...], size: float) -> float:
        shape = group_shape(self._order, tuple(sorted(axes)), self._cluster)
        return collective_time_s(kind, size, shape, self._cluster)


def _added_up(parts: tuple[Counts, ...], blocks: int, first: bool, last: bool) -> dict[tuple[str, ...], int]:
    """Of one rank."""
    block, *ends = parts
    found = {axes: blocks * count for axes, count in block.items()}
    for end, has in zip(ends, (first, last), strict=True):
        for axes, count in end.items() if has else ():
            found[axes] = found.get(axes, 0) + count
    return found


def shard_columns(states: list[RankState]) -> ShardColumns | None:
    """None where every one is at most ZeRO-1."""
    if not any(state.units for state in states):
        return None
    units = [
        state.units
        or tuple(
            Unit(held.parameters, held.parameters, 0, 0, 0, in_turns({}, state._mesh))
            for held in (state.block, state.first, state.last)
        )
        for state in states
    ]
    columns = np.array([[one.numbers for one in three] for three in units], dtype=float).transpose(1, 2, 0)
    block, first, last = (UnitColumns(*of_unit) for of_unit in columns)
    gathers, tied, shards, travels = np.array(
        [(state.gathers, state.tied, state.shards, bool(state.units)) for state in states], dtype=float
    ).T
    return ShardColumns(block, first, last, gathers, tied, shards, travels > 0)


def mesh_of(problem: Problem, draft: Draft) -> Mesh:
    """As cost.stage.strategy_mesh."""
    kv_heads, kv_inner = padded_heads(problem.model, draft.tp).key_value, problem.cluster.layout_rules != "trn2"
    return build_mesh(draft.tp, draft.pp, draft.dp, draft.cp, draft.ep, kv_heads, kv_inner, draft.axis_order)
