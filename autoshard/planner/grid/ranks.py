"""Everything that follows from a mesh alone: the state of its ranks, a transfer between stages, and the seconds after
the last microbatch of a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.after import AfterLastMicrobatch
from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.local_shape import LocalShape, choice_bytes, hidden_bytes
from autoshard.cost.step import hop_law
from autoshard.cost.zero_sharding import (
    MAY_BE_NONE,
    STAYS,
    ModelContents,
    State,
    Travelling,
    Turns,
    Unit,
    mesh_state,
    model_contents,
)
from autoshard.layout.mesh import Mesh
from autoshard.planner.axis_orders import links_of
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.unit_costs import Units, unit_programs
from autoshard.planner.memo import kept_by_object
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, of_any_batch

MANY_BLOCKS = 1 << 20
"""So many fill thousands of buckets."""
MOST_KNOWN = 4096
"""States of a problem that are kept: some KB each."""
OF_LAST_BUCKET = 1e-3
"""More than the share of the last bucket, which need not be full, in the seconds of MANY_BLOCKS."""


class RankState:
    """The meshes with the same degrees."""

    def __init__(self, problem: Problem, mesh: Mesh, shape: LocalShape, zero: int):
        self._cluster, self._precision, self._zero = problem.cluster, problem.training.precision, zero
        self._mesh, self._contents = mesh, self._contents_of(problem, mesh, shape)
        self._after = AfterLastMicrobatch(self._contents, zero, self._precision, mesh, self._cluster)
        one = problem.model, problem.training, replace(shape, microbatch_size=1)
        self.state = self._state(hidden_bytes(*one))._replace(choice=choice_bytes(*one) / hidden_bytes(*one))

    def _contents_of(self, problem: Problem, mesh: Mesh, shape: LocalShape) -> ModelContents:
        return _contents(unit_programs(problem, shape), problem.blocks.kinds, mesh.pp == 1)

    def _state(self, hidden_bytes: float) -> State:
        """The training state that the rank holds. hidden_bytes: of a microbatch of one sequence."""
        return mesh_state(self._contents, hidden_bytes, self._zero, self._precision, self._mesh, self._cluster)

    @cached_property
    def hop(self) -> CollectiveLaw:
        """Seconds over bytes of the hidden activations that a stage sends to the next one, with what goes with them."""
        law = hop_law(self._mesh, self._cluster)
        return CollectiveLaw(law.latency_s, law.seconds_per_byte * (1 + self.state.choice))

    @kept_by_object
    def after_s(self, first_blocks: int, middle_blocks: int, last_blocks: int) -> float:
        """Seconds of gradient sums, update and gathering on the rank for which they take longest.

        middle_blocks: the most of a rank without ends, 0 for none.
        """

        def of_rank(blocks: int, first: bool, last: bool) -> float:
            return float(self._after.of_rank(blocks, first, last).total_s)

        if self._mesh.pp == 1:
            return of_rank(first_blocks, True, True)
        between_s = of_rank(middle_blocks, False, False) if middle_blocks else 0.0
        return max(of_rank(first_blocks, True, False), between_s, of_rank(last_blocks, False, True))

    @kept_by_object
    def after_kinds_s(self, blocks: tuple[int, ...], first: bool, last: bool) -> float:
        """Seconds of gradient sums, update and gathering on one rank. blocks: how many it has of each kind. first,
        last: whether it has the first, the last rank's end."""
        of_rank = self._after.of_kinds(dict(zip(self._contents.blocks, blocks, strict=True)), first, last)
        return float(of_rank.total_s)

    @kept_by_object
    def after_ranks_s(self, contents: tuple[tuple[tuple[int, ...], int], ...]) -> float:
        """Seconds that follow the pipeline: of the rank for which they are most. contents: (blocks of each kind, rank)
        of each different one."""
        last = self._mesh.pp - 1
        return max(self.after_kinds_s(blocks, rank == 0, rank == last) for blocks, rank in contents)

    def after_rows_s(self, counts: Sequence[Array], first: bool, last: bool) -> Array:
        """`after_kinds_s` of many ranks. counts: of blocks of each kind, an entry for each rank."""
        rows = self._after.of_kinds(dict(zip(self._contents.blocks, counts, strict=True)), first, last)
        return np.broadcast_to(rows.total_s, counts[0].shape)

    def after_cuts_s(self, counts: Array) -> Array:
        """Seconds that follow the pipeline, by cut: of the rank for which they are most. counts: blocks of each kind on
        each rank, (kind, rank, cut)."""
        last = self._mesh.pp - 1
        alike = [slice(rank, rank + 1) for rank in sorted({0, last})] + [slice(1, last)] * (last > 1)
        of_ranks = (self.after_rows_s([*counts[:, some]], some.start == 0, some.stop == last + 1) for some in alike)
        found: Array = np.max([rows.max(0) for rows in of_ranks], axis=0)
        return found

    @kept_by_object
    def after_any_cut_s(self, blocks: tuple[int, ...]) -> float:
        """Seconds that follow the pipeline at least, however a model with so many blocks of each kind is cut.

        Why: some rank has an end of the model, and some rank at least its share of all blocks' seconds in full buckets,
        of which smaller ones take no less.
        """
        if self._mesh.pp == 1:
            return self.after_kinds_s(blocks, True, True)
        none = (0,) * len(blocks)
        alone_s = max(self.after_kinds_s(none, True, False), self.after_kinds_s(none, False, True))
        of_each = (tuple(MANY_BLOCKS * (kind == other) for other in range(len(blocks))) for kind in range(len(blocks)))
        rates_s = ((1 - OF_LAST_BUCKET) * self.after_kinds_s(many, False, False) / MANY_BLOCKS for many in of_each)
        shared_s = sum(count * rate for count, rate in zip(blocks, rates_s, strict=True)) / self._mesh.pp
        return max(alone_s, shared_s)


@lru_cache(maxsize=4)
def _known_states(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster
) -> dict[tuple[type[RankState], Hashable], RankState]:
    return {}


def rank_state(
    of: type[RankState], problem: Problem, key: Hashable, made_of: Callable[[], tuple[Mesh, LocalShape, int]]
) -> RankState:
    """The meshes with the same degrees, which this process makes once for the last few problems, whatever their batch
    and the memory and the peak of their devices are.

    key: all that tells them from others of the problem. made_of: what they are made of: mesh, local shape, ZeRO.
    """
    known = _known_states(problem.model, of_any_batch(problem.training), links_of(problem.cluster))
    state = known.get((of, key))
    if state is None:
        state = of(problem, *made_of())
        if len(known) < MOST_KNOWN:
            known[of, key] = state
    return state


@lru_cache(maxsize=2048)
def _contents(units: Units, kinds: tuple[int, ...], together: bool) -> ModelContents:
    """Contents of the ranks that run these programs. together: whether one rank has both ends of the model."""
    blocks = dict(zip(kinds, units.blocks, strict=True))
    return model_contents(blocks, units.embedding, units.head, units.tied, together)


def stacked(states: Sequence[State]) -> State:
    """The states of several meshes as one, a row each."""
    first, last = (_held([getattr(state, end) for state in states]) for end in ("first", "last"))
    kinds = {kind: _held([state.kinds[kind] for state in states]) for kind in states[0].kinds}
    of_first = all(state.block is next(iter(state.kinds.values()), None) for state in states)
    block = next(iter(kinds.values())) if of_first else _held([state.block for state in states])
    shares, travels = (
        np.array(flags) for flags in zip(*((state.shares, state.travels) for state in states), strict=True)
    )
    more: dict[str, Any] = {name: getattr(states[0], name) for name in ("one_graph", "in_regions")}
    for name in ("choice", "largest_matrix"):
        of_states = np.array([getattr(state, name) for state in states])
        more[name] = of_states if of_states.any() else 0.0
    if not travels.any():
        return State(block, first, last, shares, 1, 0, False, kinds, **more)
    owners, gathers = np.array([(state.owners, state.gathers) for state in states], dtype=float).T
    return State(block, first, last, shares, owners, gathers, travels, kinds, **more)


def _held(units: Sequence[Unit]) -> Unit:
    """A row for each unit. Where nothing travels in any of them, no row says what does."""
    parameters, owned = np.array([unit[:2] for unit in units], dtype=float).T
    columns = {name: [getattr(unit, name) for unit in units] for name in MAY_BE_NONE}
    others: dict[str, Any] = {name: np.array(held) if any(held) else 0.0 for name, held in columns.items()}
    others["chunks_loss"] = any(unit.chunks_loss for unit in units)
    if all(unit.travelling is STAYS for unit in units):
        return Unit(parameters, owned, STAYS, **others)
    numbers = [(unit.weights, unit.sums, *unit.travelling[2:-1], *unit.travelling.turns) for unit in units]
    weights, sums, gather_s, again_s, scatter_s, cast_s, *turns = np.array(numbers, dtype=float).T
    travelling = Travelling(weights, sums, gather_s, again_s, scatter_s, cast_s, Turns(*turns))
    return Unit(parameters, owned, travelling, **others)
