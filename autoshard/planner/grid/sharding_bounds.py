"""Lower bounds of layouts, however their operators are sharded over the tensor-parallel axes.

No way to share an operator among t ranks asks less of a rank than a t-th of its work and of its bytes, without
collectives and without padding to tiles; nor does a rank then hold less than a t-th of a parameter or an activation.
The integer program says more, where it was solved without a limit of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.backward_release import NO_MOMENT, Moment, Moments
from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.local_shape import LocalShape, local_shape
from autoshard.cost.orthogonal import MatrixWork
from autoshard.cost.passes import unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import Contents, ModelContents, State, Travelling, Unit
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.layout.mesh import Mesh
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_at_least_s, busiest_rank_at_least_s, work_at_most_s
from autoshard.planner.grid.interleaved_bounds import MixedLeast
from autoshard.planner.grid.promises import free_cut_promises, interleaved_promises
from autoshard.planner.grid.ranks import RankState
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.unit_costs import PARTS, PartColumns, StageColumns, as_columns, part_numbers, unit_programs
from autoshard.planner.grid.whole import Whole
from autoshard.planner.grid.work_bounds import by_work_at_least_s

ROUNDING = 1e-4
"""Share by which HiGHS may be off: it ends with tolerances of its own."""
LARGE = 1e30
"""More hidden activations than any block keeps."""
SHARED = (
    "kept_bytes",
    "replay_bytes",
    "segment_bytes",
    "again_bytes",
    "at_weights_bytes",
    "working_bytes",
    "weights_waiting_bytes",
    "for_weights_bytes",
)
"""Columns of PartColumns of which a rank has at least its share; for seconds the device is as fast as all ranks."""


class Least(NamedTuple):
    """Seconds of one microbatch that no sharding takes less than: forward, backward and gradient accumulation, nothing
    recomputed."""

    block_s: float
    embedding_s: float
    head_s: float


class LeastState(RankState):
    """The state of a rank if all tensor-parallel ranks share parameters evenly."""

    def _contents_of(self, problem: Problem, mesh: Mesh, shape: LocalShape) -> ModelContents:
        blocks, first, last, table, tied = super()._contents_of(problem, mesh, _unshared(shape))
        shared = {kind: _among(shape.tp, block) for kind, block in blocks.items()}
        tables = _among(shape.tp, Contents(tied, table))
        return ModelContents(
            shared, _among(shape.tp, first), _among(shape.tp, last), tables.matrices, tables.parameters
        )

    def _state(self, hidden_bytes: float) -> State:
        """A bound: all that travels may hide behind work, and no gradient comes before all activations are gone."""
        state = super()._state(hidden_bytes)
        if not state.travels:
            return state
        block, first, last = (unit._replace(travelling=_at_once(unit)) for unit in state[:3])
        gone = dict.fromkeys(
            ("back_late", "back_after", "back_later", "back_leaving", "back_before", "back_end"), LARGE
        )
        turns = block.travelling.turns._replace(early=0, late=0, **gone)
        block = block._replace(travelling=block.travelling._replace(turns=turns))
        return state._replace(block=block, first=first, last=last)


def _among(tp: int, unit: Contents) -> Contents:
    parameters, matrices = (
        {axes: count // tp for axes, count in counts.items()} for counts in (unit.parameters, unit.matrices)
    )
    weights, between = unit.moments.weights, unit.moments.between
    made, others = ({axes: count // tp for axes, count in of.made.items()} for of in (weights, between))
    moments = Moments(
        weights=Moment(weights.given_back, made),  # counted in hidden activations, which are shared as they are
        puts_off=unit.moments.puts_off,
        between=Moment(LARGE, others) if others else NO_MOMENT,
        put_off=unit.moments.put_off // tp,
        gathered=unit.moments.gathered,
        on_frozen=Moment(LARGE, {}),
    )
    return Contents(
        parameters,
        matrices,
        moments=moments,
        frozen=unit.frozen // tp,
        frozen_matrices={axes: count // tp for axes, count in unit.frozen_matrices.items()},
        chunks_loss=unit.chunks_loss,
        head_gradients=unit.head_gradients // tp,
        orthogonal={axes: _share(work, tp) for axes, work in unit.orthogonal.items()},
    )


def _share(work: MatrixWork, tp: int) -> MatrixWork:
    """Matrices of which each of tp ranks has a part; they share the work and exchange nothing for it."""
    return MatrixWork(work.elements / tp, 0.0, work.flops / tp, work.flops_by_length / tp)


def _at_once(unit: Unit) -> Travelling:
    return unit.travelling._replace(gather_s=0.0, again_s=0.0, scatter_s=0.0, cast_s=0.0)


class AnyOrderState(LeastState):
    """The state in any order of axes: as if nothing were sent between stages nor behind the pipeline. What a rank holds
    depends on no order."""

    @cached_property
    def hop(self) -> CollectiveLaw:
        return _nothing("", ())

    def after_s(self, first_blocks: int, middle_blocks: int, last_blocks: int) -> float:
        return 0.0  # the update is little beside what is sent


class LeastTable(Table):
    """A table whose parts are bounds: forward bounds forward, forward and backward together bound their sum."""

    rank_state = LeastState

    def __init__(self, problem: Problem, sets: tuple[str, ...], by_stage: bool, solved: Mapping[LocalShape, Least]):
        super().__init__(problem, sets, by_stage)
        self._solved = solved

    def _first_alike(self, shape: LocalShape) -> tuple[tuple[str, int], ...]:
        """The placement of the shape itself, as solved shapes are known by theirs."""
        return shape.placement

    @cached_property
    def families(self) -> list[Whole]:
        """A `Whole` for each family of what was added."""
        return [*self.wholes()]

    @cached_property
    def parts(self) -> StageColumns:
        shapes = list(self._shapes)
        numbers: Array = np.zeros((len(shapes), len(self._sets), len(PARTS), len(PartColumns._fields)))
        for tp in dict.fromkeys(shape.tp for shape in shapes):
            alike = [place for place, shape in enumerate(shapes) if shape.tp == tp]
            numbers[alike] = self._numbers(tp, [shapes[place] for place in alike])
        for place, shape in enumerate(shapes):
            if shape in self._solved:
                self._add_solved(shape, numbers[place])
        return as_columns(self._problem, shapes, numbers)

    def _numbers(self, tp: int, shapes: list[LocalShape]) -> Array:
        """Numbers in the form of `part_numbers`: each is a rank's share of what one rank would do alone.

        A layer that is quantised on one rank, and is not where several share it, spares these its casts; what they send
        each other for it takes longer.
        """
        device = self._problem.cluster.device
        fast = replace(
            device,
            flops_per_s=tuple((dtype, tp * peak) for dtype, peak in device.flops_per_s),
            memory_bandwidth_bytes_per_s=tp * device.memory_bandwidth_bytes_per_s,
            tile_rows=1,
            tile_columns=1,
        )
        unshared = {shape: place for place, shape in enumerate(dict.fromkeys(map(_unshared, shapes)))}
        numbers = part_numbers(self._problem, list(unshared), self._sets, fast, lambda shape: _nothing)
        numbers[..., [PartColumns._fields.index(name) for name in SHARED]] /= tp
        return numbers[[unshared[_unshared(shape)] for shape in shapes]]

    def _add_solved(self, shape: LocalShape, numbers: Array) -> None:
        """Raise numbers, (set, PARTS, number), to what is known of block and ends."""
        units = unit_programs(self._problem, _unshared(shape))
        per_parameter = accumulation_s_per_parameter(self._problem.training.precision, self._problem.cluster.device)
        for part, (seconds, unit) in enumerate(
            zip(self._solved[shape], (units.block, units.embedding, units.head), strict=True)
        ):
            least_s = seconds * (1 - ROUNDING) - per_parameter * (sum(unit.parameters.values()) // shape.tp)
            forward_s, backward_s = numbers[:, part, 0], numbers[:, part, 1]
            replayed_s = backward_s - backward_s.min()
            numbers[:, part, 1] = np.maximum(backward_s, least_s + replayed_s - forward_s)


def _nothing(kind: str, axes: tuple[str, ...]) -> CollectiveLaw:
    return CollectiveLaw(0.0, 0.0)


def _unshared(shape: LocalShape) -> LocalShape:
    return replace(shape, tp=1, sequence_parallel=False)


class AnyOrderTable(LeastTable):
    """A table whose bounds hold in every order of axes."""

    rank_state = AnyOrderState


def block_limits_s(table: LeastTable, known_s: float) -> dict[LocalShape, float]:
    """Seconds that a block may take for one microbatch in a layout that takes less than known_s, by local shape,
    nothing replayed.
    """
    most: dict[LocalShape, float] = {}
    for whole in table.families:
        draft = np.arange(len(whole.drafts.drafts))
        _, first, last, state = whole.parts_of(draft, np.zeros_like(draft))
        per_parameter = accumulation_s_per_parameter(whole.problem.training.precision, whole.problem.cluster.device)
        ends_s = sum(end.forward_s + end.backward_s for end in (first, last))
        ends_s = ends_s + per_parameter * (state.first.parameters + state.last.parameters)
        of_all_s = work_at_most_s(whole.family.pp, whole.count, known_s)
        of_block_s = (of_all_s - ends_s) / whole.problem.model.num_hidden_layers
        for shape, seconds in zip(map(local_shape, whole.drafts.drafts), of_block_s.tolist(), strict=True):
            most[shape] = max(seconds, most.get(shape, 0.0))
    return most


def step_times_at_least_s(table: LeastTable, by_stage: bool, limit_bytes: float, known_s: float) -> dict[Draft, float]:
    """Seconds that a step takes at least, by draft.

    Only drafts of which some layout may fit in limit_bytes and take less than known_s are there. by_stage: whether
    stages choose their recompute sets.
    """
    least: dict[Draft, float] = {}
    for draft, _, seconds in _bounds(table, by_stage, limit_bytes, known_s):
        least[draft] = min(seconds, least.get(draft, inf))
    return least


def sets_at_least_s(table: LeastTable, limit_bytes: float, known_s: float) -> dict[tuple[Draft, str], float]:
    """Seconds that a step takes at least, by draft and recompute set for all stages; only those that may fit in
    limit_bytes and take less than known_s."""
    return {(draft, name): seconds for draft, name, seconds in _bounds(table, False, limit_bytes, known_s)}


def _bounds(
    table: LeastTable, by_stage: bool, limit_bytes: float, known_s: float
) -> Iterator[tuple[Draft, str, float]]:
    """(draft, recompute set, seconds at least); where stages choose, the first set stands for all."""
    for whole in _below(table.families, known_s):
        if whole.family.cuts_are_free:
            promised = free_cut_promises(whole, by_stage, limit_bytes, known_s)
            bounds: Iterator[tuple[int, int, float]] = (
                (promise.draft, promise.sets[0], promise.at_least_s) for promise in promised
            )
        elif by_stage and whole.family.sets_are_free:
            bounds = _mixed_promises(whole, limit_bytes, known_s)
        else:
            bounds = _fixed_promises(whole, limit_bytes, known_s)
        for draft, recompute, seconds in bounds:
            yield whole.drafts.drafts[draft], whole.sets[recompute], seconds


def _below(wholes: Iterable[Whole], known_s: float) -> Iterator[Whole]:
    """The wholes with those drafts alone that may take less than known_s seconds, as if memory had no limit; all where
    it is not the first set that takes least."""
    for whole in wholes:
        if whole.sets[0] != NO_RECOMPUTE:
            yield whole
            continue
        may = np.flatnonzero(any_cut_at_least_s(whole) < known_s)
        if len(may):
            yield whole.only(may)


def any_cut_at_least_s(whole: Whole) -> Array:
    """Seconds of a step, by draft, that no cut and no recompute sets take less than. whole: of blocks of one kind, with
    `none` as its first recompute set."""
    drafts = np.arange(len(whole.drafts.drafts))
    *parts, state = whole.parts_of(drafts, np.zeros_like(drafts))
    per_parameter = accumulation_s_per_parameter(whole.problem.training.precision, whole.problem.cluster.device)
    block_s, *ends_s = (unit_work_s(part, unit, per_parameter) for part, unit in zip(parts, state[:3], strict=True))
    forward_s, ends = parts[0].forward_s, (ends_s[0], ends_s[1])
    after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state)
    return by_work_at_least_s(whole.problem, whole.family, whole.count, block_s, ends, forward_s=forward_s) + after_s


def _mixed_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[tuple[int, int, float]]:
    """(draft, first set, seconds) of interleaved layouts whose virtual stages choose their sets."""
    promised = [*interleaved_promises(whole, limit_bytes, known_s)]
    if not promised:
        return
    mixed_s = MixedLeast(whole, np.array([promise.draft for promise in promised]), limit_bytes).work_s()
    for promise, seconds in zip(promised, mixed_s.tolist(), strict=True):
        if seconds < known_s:
            yield promise.draft, promise.sets[0], max(seconds, promise.at_least_s)


def _fixed_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[tuple[int, int, float]]:
    """(draft, set, seconds) of layouts with the cuts that are priced and one recompute set for all stages."""
    priced = whole.price(*whole.pairs(np.arange(len(whole.drafts.drafts) * whole.num_sets)))
    block, first, last, state = whole.parts_of(priced.draft, priced.recompute)
    problem, family = whole.problem, whole.family
    per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    layers = priced.cuts.of_stages(family.pp, family.num_virtual_stages)
    launch_s = problem.cluster.device.pass_launch_s
    forward_s = launch_s + layers * block.forward_s
    both_s = 2 * launch_s + layers * (block.forward_s + block.backward_s + per_parameter * state.block.parameters)
    forward_s, both_s = (
        np.broadcast_to(seconds, (family.pp, len(priced.draft))).copy() for seconds in (forward_s, both_s)
    )
    work_s = family.num_virtual_stages * both_s
    for rank, end, parameters in ((0, first, state.first.parameters), (-1, last, state.last.parameters)):
        work_s[rank] += end.forward_s + end.backward_s + per_parameter * parameters
    apart = family.rules.weights_apart
    passed_s = forward_s if apart else both_s
    passed_s[0] += first.forward_s + (0.0 if apart else first.backward_s)
    passed_s += whole.hop_s[priced.draft] * (1 if apart else 2)
    after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state[priced.draft])
    at_least_s = busiest_rank_at_least_s(whole.count[priced.draft], work_s, passed_s) + after_s
    at_least_s = np.where(priced.memory_bytes <= limit_bytes, at_least_s, np.inf)
    for row in np.flatnonzero(at_least_s < known_s).tolist():
        yield int(priced.draft[row]), int(priced.recompute[row]), float(at_least_s[row])
