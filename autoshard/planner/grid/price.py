"""Step time and memory of whole layouts: everything that `cost.estimate` counts, for thousands at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import block_passes, end_passes, stages_work
from autoshard.cost.rank import End, LastBlock, Rank, any_around, around, ends_of, may_open, model_ends, next_to
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import State
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.cuts import Cuts
from autoshard.planner.grid.kind_cuts import KindCuts
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.rows import by_count, different, shares
from autoshard.schedules import (
    SCHEDULES,
    Moments,
    Schedule,
    Work,
    at_least_s,
    head_apart,
    held_at_first,
    held_together,
    rank_holds,
    step_time_s,
)
from autoshard.schedules.held import RankHolds, warm_ups
from autoshard.spec.blocks import Blocks

KeptBytes = Callable[[Callable[[PartColumns], Array]], Array]
AT_ONCE = 1 << 13
"""Numbers of an array that stays in a core's cache."""


class Family(NamedTuple):
    """The choices that layouts priced together share. warm_ups: with several chunks a rank, the forwards of each rank
    before its first backward, where the schedule says them; else empty."""

    schedule: str
    pp: int
    num_virtual_stages: int
    warm_ups: tuple[int, ...] = ()

    @staticmethod
    def of(schedule: str, pp: int, num_virtual_stages: int, num_microbatches: int) -> Family:
        """The family of a layout with so many microbatches."""
        rules = SCHEDULES[schedule]
        if num_virtual_stages == 1 or rules.warm_up is None:
            return Family(schedule, pp, num_virtual_stages)
        return Family(schedule, pp, num_virtual_stages, warm_ups(rules, pp, num_microbatches, num_virtual_stages))

    @property
    def rules(self) -> Schedule:
        """The rules of the schedule."""
        return SCHEDULES[self.schedule]

    @property
    def is_bound(self) -> bool:
        """Whether step times in the grid are lower bounds; else they are those of `cost.estimate`."""
        return self.pp > 1 and self.rules.closed_form is not None

    @property
    def cuts_are_free(self) -> bool:
        """One chunk a rank, on several ranks: each stage may have a number of blocks and a recompute set of its own."""
        return self.pp > 1 and self.num_virtual_stages == 1 and self.rules.stages_are_free

    @property
    def sets_are_free(self) -> bool:
        """Several chunks a rank, on several ranks: each virtual stage may have a recompute set of its own."""
        return self.pp > 1 and self.num_virtual_stages > 1 and self.rules.stages_are_free

    def waits_for_all(self, m: Array | int) -> Array | bool:
        """By row, whether each rank waits before its first backward, and at the end once more. With one chunk a rank:
        no rank has more forwards before its first backward than 1f1b, so it waits while the first microbatch goes
        through all ranks behind and back. With several: each has one of its last chunk, so it waits for that."""
        return self._such_rows(_waits_for_all, m)

    def is_at_once(self, m: Array | int) -> Array | bool:
        """By row, whether all forwards come before all backwards."""
        return self._such_rows(_is_at_once, m)

    def _such_rows(self, such: Callable[[Schedule, int, int, int], bool], m: Array | int) -> Array | bool:
        rules, pp, vpp = self.rules, self.pp, self.num_virtual_stages
        if rules.warm_up is None or rules.weights_apart:
            return False
        (such_rows,) = by_count(lambda count: [int(such(rules, pp, count, vpp))], m)
        return such_rows > 0

    def all_warm_ups(self, m: Array | int) -> Sequence[Array | int]:
        """Forwards of each rank before its first backward, numbers by row where rows differ."""
        warm_up, pp, vpp = self.rules.warm_up, self.pp, self.num_virtual_stages
        if warm_up is None:
            return [m] * pp
        return by_count(lambda count: [warm_up(rank, pp, count, vpp) for rank in range(pp)], m)

    def holds(self, m: Array | int) -> list[RankHolds]:
        """The most that each rank holds; numbers by row where rows differ."""
        rules, pp, vpp = self.rules, self.pp, self.num_virtual_stages
        numbers = by_count(lambda count: [most for of_rank in rank_holds(rules, pp, count, vpp) for most in of_rank], m)
        size = len(RankHolds._fields)
        return [RankHolds(*numbers[begin : begin + size]) for begin in range(0, pp * size, size)]


@lru_cache(maxsize=4096)
def _waits_for_all(rules: Schedule, pp: int, count: int, vpp: int) -> bool:
    """`Family.waits_for_all` of one number of microbatches."""
    warm, before = warm_ups(rules, pp, count, vpp), (vpp - 1) * pp
    if before:
        return count % pp == 0 and min(warm) > before
    return all(its <= pp - rank for rank, its in enumerate(warm))


@lru_cache(maxsize=4096)
def _is_at_once(rules: Schedule, pp: int, count: int, vpp: int) -> bool:
    """`Family.is_at_once` of one number of microbatches."""
    return min(warm_ups(rules, pp, count, vpp)) == count * vpp


class Layouts(NamedTuple):
    """Layouts of one family, an entry each. block: by layout; where the model's blocks are of several kinds, the mean
    block of each stage, (virtual stage, layout), and so is the one in state; kinds has a block of each kind alike.
    first, last: the ends of the model. hop_s: of one microbatch to the next stage. after_s: once a step, behind the
    pipeline."""

    num_microbatches: Array
    block: PartColumns
    first: PartColumns
    last: PartColumns
    hidden_bytes: Array
    state: State
    hop_s: Array
    after_s: Array
    cuts: Cuts | KindCuts
    kinds: Sequence[PartColumns] = ()


def waiting(
    parts: tuple[PartColumns, PartColumns, PartColumns], state: State
) -> tuple[PartColumns, PartColumns, PartColumns]:
    """Block and ends with forward and backward seconds that include their waits for what travels."""
    if state.travels is False:
        return parts
    block, first, last = parts
    waits = (block_passes(block, state.block), end_passes(first, state.first), end_passes(last, state.last))
    block, first, last = (
        part._replace(forward_s=passes.forward_s, backward_s=passes.backward_s)
        for part, passes in zip(parts, waits, strict=True)
    )
    return block, first, last


def step_times_s(problem: Problem, family: Family, layouts: Layouts, exact: bool = False) -> Array:
    """Seconds of a step of each layout. exact: not a bound, whatever the family."""
    work = _pipeline_work(problem, family, layouts)
    if family.is_bound and not exact:
        return at_least_s(family.schedule, work) + layouts.after_s
    return step_time_s(family.schedule, *work) + layouts.after_s


def _pipeline_work(problem: Problem, family: Family, layouts: Layouts) -> Work:
    """The work of the pipelines: seconds by (virtual stage, layout)."""
    pp, vpp, device = family.pp, family.num_virtual_stages, problem.cluster.device
    return stages_work(
        family.schedule,
        (pp, layouts.num_microbatches, vpp),
        layouts.cuts.of_stages(pp, vpp),
        [layouts.block],
        layouts_ends(family, layouts.first, layouts.last, layouts.state),
        [layouts.state.block],
        device,
        accumulation_s_per_parameter(problem.training.precision, device),
        layouts.hop_s if pp > 1 else 0.0,
    )


def memory_bytes(problem: Problem, family: Family, layouts: Layouts) -> Array:
    """Bytes on the fullest rank of each layout. Of ranks with the same blocks those that hold no more than the one
    before are left out."""
    if not isinstance(layouts.cuts, Cuts):
        return _memory_of_kinds(problem, family, layouts)
    pp, vpp = family.pp, family.num_virtual_stages
    layers = layouts.cuts.layers(pp) if vpp == 1 else np.repeat(layouts.cuts.base[None], pp, axis=0)
    ends = layouts_ends(family, layouts.first, layouts.last, layouts.state)
    fullest: Array = np.zeros_like(layouts.hidden_bytes)
    holds = family.holds(layouts.num_microbatches)
    for rank in range(pp):
        if 1 < rank < pp - 1 and _holds_no_more(holds[rank], holds[rank - 1], layers[rank], layers[rank - 1]):
            continue
        rows = rank_rows(family, holds[rank], layers[rank], rank, layouts.block, ends, layouts.hidden_bytes)
        needed = rank_memory(rows, layouts.state, problem.training.precision).total
        np.maximum(fullest, needed, out=fullest)
    return fullest + problem.cluster.device.reserved_memory_bytes


def _memory_of_kinds(problem: Problem, family: Family, layouts: Layouts) -> Array:
    """Bytes on the fullest rank, by layout, where blocks are of several kinds. Ranks between the ends of the model are
    looked at together."""
    assert isinstance(layouts.cuts, KindCuts)
    every, pp, vpp, m, cuts = (
        problem.blocks,
        family.pp,
        family.num_virtual_stages,
        layouts.num_microbatches,
        layouts.cuts,
    )
    layers, counts = cuts.of_stages(pp, vpp), cuts.kinds(every)
    ends = layouts_ends(family, layouts.first, layouts.last, layouts.state)
    fullest: Array = np.zeros_like(layouts.hidden_bytes)
    holds = family.holds(m)
    between = max(1, AT_ONCE // max(1, len(fullest)))
    begins = [*range(min(pp, 1)), *range(1, pp - 1, between), *range(max(1, pp - 1), pp)]
    for begin, end in pairwise([*begins, pp]):
        stages = [slice(chunk * pp + begin, chunk * pp + end) for chunk in range(vpp)]
        of_ranks, held = np.stack([counts[:, several] for several in stages], axis=1), _together(holds[begin:end])
        blocks, *kinds = [block.of_stages(stages) for block in (layouts.block, *layouts.kinds)]
        rows = rank_rows(family, held, layers[stages[0]], begin, blocks[0], ends, layouts.hidden_bytes)
        behind = cuts.behind(every, stages[0]) if vpp == 1 else None
        rows = rows._replace(kinds=last_blocks(every, kinds, of_ranks, behind))
        if vpp > 1:
            ranks, of_chunks = np.arange(begin, end)[:, None], np.stack([layers[several] for several in stages])
            rows = with_unlike_chunks(rows, family, m, ranks, of_chunks, blocks)
            rows = rows._replace(kind_counts=dict(zip(every.kinds, of_ranks, strict=True)))
        state = layouts.state.of(zip(every.kinds, of_ranks.sum(1), strict=True))
        needed = rank_memory(rows, state, problem.training.precision).total
        np.maximum(fullest, needed.max(0), out=fullest)
    return fullest + problem.cluster.device.reserved_memory_bytes


def _together(holds: Sequence[RankHolds]) -> RankHolds:
    """Microbatches that several ranks hold, (rank, row) or (rank, 1)."""
    columns: Array = np.broadcast_arrays(*(np.atleast_1d(number) for one in holds for number in one))
    return RankHolds(*np.stack(columns).reshape(len(holds), len(RankHolds._fields), -1).swapaxes(0, 1))


def last_blocks(
    every: Blocks, kinds: Sequence[Sequence[PartColumns]], counts: Array, behind: Array | None
) -> tuple[tuple[LastBlock, ...], ...]:
    """Rank.kinds of many ranks. every: the model's blocks. kinds: a block of each kind on each chunk, or on all of
    them. counts: how many there are, (kind, chunk, rank). behind: with one chunk, as of `kinds_behind`, (kind, kind,
    rank)."""

    def of_kind(kind: int, there: Array) -> Iterator[LastBlock]:
        on_chunks = there if len(kinds[kind]) == len(there) else there.any(0, keepdims=True)
        others: list[tuple[PartColumns, Array]] = []
        beside = next_to(every.kinds[kind], every.kinds, every)
        if behind is None:
            of_chunks = counts.swapaxes(0, 1)
            arounds = [any_around(kind, every.kinds, of_chunk, every.in_order) for of_chunk in of_chunks]
            opens = may_open(kind, every.kinds, of_chunks[-1], every.in_order)
        else:
            arounds, opens = [around(kind, counts[:, 0], behind[kind])], behind[kind].sum(0) == 0
            others = [(one, count) for (one,), count in zip(kinds, behind[kind], strict=True) if count.any()]
        for block, on_chunk in zip(kinds[kind], on_chunks, strict=True):
            yield LastBlock(block, on_chunk, others, arounds, opens, beside)

    return tuple(tuple(of_kind(kind, share > 0)) for kind, share in enumerate(shares(counts)))


def with_unlike_chunks(
    rows: Rank, family: Family, m: Array, rank: Array | int, layers: Array, blocks: Sequence[PartColumns]
) -> Rank:
    """Pipeline ranks of many layouts whose chunks differ. rows: the rank as if all were alike. m: microbatches. rank:
    its number, by layout or of all, or (rank, 1) of several. layers: of each chunk, (chunk, layout), of several ranks
    (chunk, rank, layout). blocks: the mean block of each chunk."""
    of_held: dict[tuple[Moments, Moments], Array] = {}  # many numbers of microbatches are held alike
    for number in different(m):
        sizes = family.schedule, family.pp, number, family.num_virtual_stages
        of_ranks = [*zip(held_together(*sizes), held_at_first(*sizes), strict=True)]
        for place in different(np.asarray(rank)):
            held = of_ranks[place]
            of_held[held] = of_held.get(held, False) | ((m == number) & (rank == place))
    apart = [(*(head_apart(held) if rows.has_loss else (held, ())), alike) for (held, _), alike in of_held.items()]

    def most(moments: Sequence[tuple[Moments, Array]]) -> KeptBytes:
        of_counts = [(np.flatnonzero(alike), np.array(_corners(held), float)) for held, alike in moments if held]

        def kept_bytes(of: Callable[[PartColumns], Array]) -> Array:
            sizes = np.stack([(count * of(block)).ravel() for count, block in zip(layers, blocks, strict=True)])
            kept = np.zeros(sizes.shape[1])  # of rows without such a moment it stays that
            for alike, held in of_counts:
                kept[alike] = reduce(np.maximum, (counts @ sizes[:, alike] for counts in held))
            return kept.reshape(layers.shape[1:])

        return kept_bytes

    at_first = most([(held, alike) for (_, held), alike in of_held.items()])
    headless = any(held for _, held, _ in apart)
    return rows._replace(
        blocks=layers.sum(0),
        most_blocks=layers.max(0),
        kept_bytes=most([(held, alike) for held, _, alike in apart]),
        kept_headless_bytes=most([(held, alike) for _, held, alike in apart]) if headless else None,
        kept_at_first_bytes=lambda of: at_first(of) - layers[0] * of(blocks[0]),
    )


@lru_cache(maxsize=1024)
def _corners(held: Moments) -> Moments:
    """The moments at which most may be held, whatever chunks keep: of two chunks none that lies between two others.
    held: microbatches of each chunk, by moment."""
    if len(held[0]) != 2:
        return held
    corners: list[tuple[int, ...]] = []
    for moment in sorted(held):
        while len(corners) > 1 and _is_between(corners[-2], corners[-1], moment):
            corners.pop()
        corners.append(moment)
    return tuple(corners)


def _is_between(one: Sequence[int], middle: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a point is on the line between two others or below it."""
    return (other[0] - one[0]) * (middle[1] - one[1]) <= (other[1] - one[1]) * (middle[0] - one[0])


def _holds_no_more(holds: RankHolds, before: RankHolds, layers: Array, layers_before: Array) -> bool:
    """Whether a rank needs no more than the one before in all rows."""
    return bool(
        all(np.all(own <= other) for own, other in zip(holds, before, strict=True)) and np.all(layers == layers_before)
    )


def layouts_ends(family: Family, first: PartColumns, last: PartColumns, state: State) -> tuple[End, ...]:
    """The ends of the models. first, last: as `Whole.parts_of` says them; ends that are tied on one rank are in the
    first. A head that takes time is apart, also where adapters alone are learned and it counts no parameters."""
    return model_ends(first, last, state, family.pp == 1 and not last.forward_s.any())


def rank_rows(
    family: Family,
    holds: RankHolds,
    layers: Array,
    rank: int,
    block: PartColumns,
    ends: tuple[End, ...],
    hidden_bytes: Array,
) -> Rank:
    """One pipeline rank of many layouts, as cost.rank_load.rank_load has it for one. holds: of the rank. layers: of
    each chunk of the rank. ends: all."""
    pp, vpp = family.pp, family.num_virtual_stages
    return Rank(
        vpp * layers if vpp > 1 else layers,
        layers,
        *holds,
        family.rules.weights_apart,
        pp == 1,
        block,
        ((LastBlock(block),),),
        ends_of(ends, rank == 0, rank == pp - 1),
        hidden_bytes,
    )
