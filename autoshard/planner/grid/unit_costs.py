"""Blocks and ends of stages in columns: an entry for each local shape under each recompute set.

The numbers of `cost.stage.stage_parts`, by the same functions. Here a program is partitioned once for all microbatch
sizes, and a recompute set costs two sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.compute import quantized_products
from autoshard.cost.local_shape import LocalShape, hidden_bytes
from autoshard.cost.part import Part, Seconds
from autoshard.cost.program import LawOf, ProgramWork
from autoshard.cost.stage import assembled, collective_laws
from autoshard.cost.stage_program import UNITS, Unit, begins_as_others, block_unit, rewrites, stage_work
from autoshard.graph.count import QUANTIZED
from autoshard.graph.partition import Program
from autoshard.graph.recompute import NO_RECOMPUTE, Change, Pattern, is_recomputed, recomputing
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.microbatch import (
    BytesColumns,
    UnitColumns,
    bytes_columns,
    fixed_bytes_of,
    unit_columns,
)
from autoshard.planner.grid.steps import Asked, priced_steps
from autoshard.rows import mean, pieces, shares
from autoshard.spec.cluster import Device
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, of_any_batch

PARTS = ("block", "embedding", "head", "tied")
"""The parts of a model whose blocks are alike. Behind them come blocks of its other kinds."""
AT_ONCE = 128
"""Programs whose steps are priced together: of thousands the columns would take a hundred MB."""


class PartColumns(NamedTuple):
    """A block or an end of the model in columns, for one microbatch on one rank: seconds and bytes, as in
    cost.part.Part."""

    forward_s: Array
    backward_s: Array
    kept_bytes: Array
    replay_bytes: Array
    segment_bytes: Array
    again_bytes: Array
    at_weights_bytes: Array
    working_bytes: Array
    weights_waiting_bytes: Array
    for_weights_bytes: Array
    weight_gradients_s: Array

    def take(self, rows: Array) -> PartColumns:
        """These rows alone, in their order."""
        return PartColumns(*(column[rows] for column in self))

    def without_replay(self) -> PartColumns:
        """The same of which nothing runs again."""
        none = np.zeros_like(self.replay_bytes)
        return self._replace(replay_bytes=none, segment_bytes=none, again_bytes=none)

    def of_stages(self, stages: Sequence[int | slice]) -> list[PartColumns]:
        """The columns of some stages, where they are (stage, row): an entry for each; of all together where they
        are (row,)."""
        if self.kept_bytes.ndim == 1:
            return [self]
        return [PartColumns(*(column[stage] for column in self)) for stage in stages]


def mean_columns(blocks: Sequence[PartColumns], counts: Sequence[Array]) -> PartColumns:
    """A block as the mean of blocks of several kinds. blocks: one of each kind. counts: how many are of each kind, in
    rows that go with those of the blocks; where there are none, the first kind stands for all."""
    share = shares(counts)
    return PartColumns(*(mean(share, columns) for columns in zip(*blocks, strict=True)))


class StageColumns(NamedTuple):
    """The parts of stages in columns, as cost.stage.Parts has them. blocks: one of each kind (Problem.blocks). tied:
    embedding and head on one rank that share their table, else zeros."""

    blocks: tuple[PartColumns, ...]
    embedding: PartColumns
    head: PartColumns
    tied: PartColumns
    hidden_bytes: Array

    def ends(self, rows: Array, together: bool) -> tuple[PartColumns, PartColumns]:
        """The ends of some rows: (of the first rank, of the last rank). together: on one rank, where ends that are tied
        are one part."""
        if together and self.tied.forward_s.any():
            first = self.tied.take(rows)
            return first, PartColumns(*(np.zeros_like(column) for column in first))
        return self.embedding.take(rows), self.head.take(rows)


def stage_columns(problem: Problem, shapes: Sequence[LocalShape], recompute: tuple[str, ...]) -> StageColumns:
    """The parts of stages: entry i * len(recompute) + j is shape i under set j."""
    return as_columns(problem, shapes, part_numbers(problem, shapes, recompute))


def as_columns(problem: Problem, shapes: Sequence[LocalShape], numbers: Array) -> StageColumns:
    """The parts of stages in columns, in the order of `stage_columns`. numbers: as `part_numbers` gives them."""
    rows = numbers.shape[0] * numbers.shape[1]
    columns = np.ascontiguousarray(numbers.reshape(rows, numbers.shape[2], -1).transpose(1, 2, 0))
    hidden = np.array([hidden_bytes(problem.model, problem.training, shape) for shape in shapes], dtype=float)
    block, embedding, head, tied, *others = (PartColumns(*part) for part in columns)
    return StageColumns((block, *others), embedding, head, tied, np.repeat(hidden, numbers.shape[1]))


@dataclass(frozen=True, eq=False)
class Programs:
    """Programs that are priced together. with_blocks: what recompute sets change. ends: the others."""

    with_blocks: tuple[ProgramWork, ...]
    ends: tuple[ProgramWork, ...]

    @property
    def works(self) -> tuple[ProgramWork, ...]:
        return (*self.with_blocks, *self.ends)

    @cached_property
    def columns(self) -> UnitColumns:
        """The arrays of `works`."""
        return unit_columns(self.works)

    @cached_property
    def bytes(self) -> BytesColumns:
        """The bytes of `works`."""
        return bytes_columns(self.works)


@dataclass(frozen=True, eq=False)
class Units:
    """The programs of one local shape, for one sequence a microbatch, as cost.stage_program.UNITS names them. blocks:
    one of each kind. find_first: makes the embedding with the first block behind it."""

    blocks: tuple[ProgramWork, ...]
    embedding: ProgramWork
    head: ProgramWork
    tied: ProgramWork | None
    find_first: Callable[[], ProgramWork]

    @property
    def block(self) -> ProgramWork:
        """A block of the first kind."""
        return self.blocks[0]

    @cached_property
    def apart(self) -> Programs:
        """Blocks, and ends of the model."""
        return Programs(self.blocks, tuple(work for work in (self.embedding, self.head, self.tied) if work is not None))

    @cached_property
    def with_first(self) -> Programs:
        """The same and, behind the blocks, the first one with the embedding: what sets need that repeat the first
        operator of a block, where the first block does not begin as others do."""
        return Programs((*self.blocks, self.find_first()), self.apart.ends)


_BUT_FOR_SIZE = attrgetter(*(field.name for field in fields(LocalShape) if field.name != "microbatch_size"))


def alike_but_for_size(shapes: Sequence[LocalShape]) -> list[tuple[LocalShape, list[int]]]:
    """Local shapes that differ in the size of their microbatches alone, together: (one of them with microbatches of one
    sequence, the places of all)."""
    places: dict[tuple[object, ...], list[int]] = {}
    for place, shape in enumerate(shapes):
        places.setdefault(_BUT_FOR_SIZE(shape), []).append(place)
    return [(replace(shapes[several[0]], microbatch_size=1), several) for several in places.values()]


def programs_of(problem: Problem, shapes: Sequence[LocalShape]) -> list[Units]:
    """The `unit_programs` of each of some local shapes."""
    found: dict[int, Units] = {}
    for shape, places in alike_but_for_size(shapes):
        found.update(dict.fromkeys(places, unit_programs(problem, shape)))
    return [found[place] for place in range(len(shapes))]


def unit_programs(problem: Problem, shape: LocalShape) -> Units:
    """The programs of this local shape, whatever the size of its microbatches and wherever its ranks are."""
    return _unit_programs(*_whatever_the_hardware(problem), replace(shape, microbatch_size=1, placement=()))


def _whatever_the_hardware(problem: Problem) -> tuple[ModelSpec, TrainingSpec, bool]:
    """All that programs depend on: neither on the batch nor on what devices and links can do."""
    return problem.model, of_any_batch(problem.training), problem.cluster.platform.kv_heads_innermost


@lru_cache(maxsize=1024)
def _unit_programs(model: ModelSpec, training: TrainingSpec, kv_inner: bool, shape: LocalShape) -> Units:
    sizes = (training.sequence_length, training.expert_slots(shape.ep), training.precision.compute_dtype)

    def work(unit: Unit) -> ProgramWork:
        return stage_work(model, *sizes, shape, kv_inner, *unit, rewrites(model, training, unit[0], unit[2]))

    blocks = tuple(work(block_unit(kind)) for kind in training.blocks_of(model.blocks).kinds)
    tied = work(UNITS["tied"]) if model.shares_embedding else None
    return Units(blocks, work(UNITS["embedding"]), work(UNITS["head"]), tied, lambda: work(UNITS["first"]))


def part_numbers(
    problem: Problem,
    shapes: Sequence[LocalShape],
    recompute: tuple[str, ...],
    device: Device | None = None,
    laws: Callable[[LocalShape], LawOf] | None = None,
    more: tuple[str, ...] = (),
    in_memory: bool = True,
) -> Array:
    """Seconds and bytes, (shape, set, part, field of PartColumns and then those of `more`). The parts are PARTS, then
    blocks of other kinds than the first. device, laws: the cluster's, unless given. more: other fields of
    cost.part.Part, such as "forward.attention". in_memory: whether bytes are counted, which takes about as long as
    seconds do; else they are 0."""
    several, law_of = alike_but_for_size(shapes), laws or partial(stage_law, problem)
    every = [unit_programs(problem, shape) for shape, _ in several]
    opening = every[0].block.program.graph.operators[0]  # of every local shape
    opens = np.array([is_recomputed(opening, name) for name in recompute], dtype=float)
    has_first = not all(begins_as_others(one.block.program) for one in every)
    units = [one.with_first if has_first else one.apart for one in every]
    asked = [
        Asked(programs.columns, np.array([shapes[place].microbatch_size for place in places]), law_of(shape))
        for programs, (shape, places) in zip(units, several, strict=True)
    ]
    device = device or problem.cluster.device
    peak_flops_per_s = device.peak_flops_per_s(problem.training.precision.compute_dtype)
    quantized_by = quantized_products(device, problem.training.precision)
    of_shapes: list[_Sums] = []
    for some in pieces(len(units), AT_ONCE):
        seconds, starts = priced_steps(asked[some], device, peak_flops_per_s, quantized_by)
        forward_s = np.stack([np.broadcast_to(column, starts[-1]) for column in seconds.forward.values])
        back = (*seconds.backward.values, seconds.put_off_s)
        backward_s = np.stack([np.broadcast_to(column, starts[-1]) for column in back])
        of_shapes += [
            _sums(
                shape.sequences,
                forward_s[:, start:stop],
                backward_s[:, start:stop],
                _sets_columns(programs, recompute),
                _sets_bytes(programs, recompute) if in_memory else None,
            )
            for programs, shape, start, stop in zip(units[some], asked[some], starts, starts[1:], strict=False)
        ]
    order = np.argsort(np.concatenate([places for _, places in several]))
    sums = _Sums(*(np.concatenate(numbers)[order] for numbers in zip(*of_shapes, strict=True)))
    kinds = len(every[0].blocks)
    named = (*PartColumns._fields, *more)
    # each number of all shapes lies together, as columns have it
    by_column = np.zeros((len(PARTS) + kinds - 1, len(named), len(shapes), len(recompute)))
    numbers: Array = by_column.transpose(2, 3, 0, 1)
    for place, part in enumerate(_parts(sums, len(recompute), kinds, opens, has_first)):
        for field, name in enumerate(named if part is not None else ()):
            numbers[:, :, place, field] = attrgetter(name)(part)
    return numbers


def stage_law(problem: Problem, shape: LocalShape) -> LawOf:
    """(kind, axes) -> seconds over bytes of a collective among ranks of a stage of this local shape."""
    return collective_laws(problem.model, problem.cluster, shape)


BY_SET = 13
"""Kinds of bytes in SetBytes that differ by set."""
BY_PROGRAM = 3
"""Kinds that do not."""
AT_WEIGHTS, FULLEST, FORWARD, FULLEST_WAITING, FORWARD_WAITING, WAITING_TWICE = 3, 4, 6, 8, 10, 12
"""Of those that do, the places of what is there with the gradients of an operator's weights, and at the fullest step of
backward and of forward, with a tile of scores; behind each of these steps, without any. Of the next two with what waits
for gradients of weights. Of the last, what waits for these a second time."""


class SetColumns(NamedTuple):
    """Effects of recompute sets on the n programs of one local shape, for one sequence a microbatch.

    begins: (n,), the first step of each program among those of all. repeats: of each program with blocks, (step, set),
    1 where it repeats the step under the set.
    """

    begins: Array
    repeats: tuple[Array, ...]


class SetBytes(NamedTuple):
    """Bytes of the n programs of one local shape under recompute sets, for one sequence a microbatch.

    slope_bytes: what one sequence more adds to the bytes that programs keep, that their largest segment saves and that
    all do, zeros, to those that are there at the fullest step of backward and at that of forward, of both with a tile
    of scores and without, and all four with what waits for gradients of weights, what waits for these a second time,
    (n x set,) each, that they work with, with a tile and without, and that wait for gradients of weights, (n,) each.
    fixed_bytes: what is there without any.
    at_weights: what belongs where the zeros are, of each program with blocks: the same of its steps that have gradients
    of weights, (set, step) and (step,). Which one needs most depends on how many sequences there are.
    """

    slope_bytes: Array
    fixed_bytes: Array
    at_weights: Sequence[tuple[Array, Array]]


@lru_cache(maxsize=2048)
def _sets_columns(programs: Programs, recompute: tuple[str, ...]) -> SetColumns:
    steps = [len(work.program.steps) for work in programs.works]
    begins = np.array([0, *accumulate(steps[:-1])])
    if recompute == (NO_RECOMPUTE,):  # what steps save need not be known
        return SetColumns(begins, tuple(np.zeros((count, 1)) for count in steps[: len(programs.with_blocks)]))
    known = (recomputing(work.program) for work in programs.with_blocks)
    return SetColumns(begins, tuple(_set_places(pattern, recompute).in_sums for pattern, _ in known))


@lru_cache(maxsize=2048)
def _sets_bytes(programs: Programs, recompute: tuple[str, ...]) -> SetBytes:
    works, columns, recomputed = programs.works, programs.bytes, len(programs.with_blocks)
    known = [recomputing(work.program) for work in works]
    by_set, fixed_by_set = np.zeros((2, BY_SET, len(works), len(recompute)))
    kept_bytes, segment_bytes, again_bytes, *_ = by_set
    at_weights: list[tuple[Array, Array]] = []
    for program, (pattern, buffers) in enumerate(known):
        names = recompute if program < recomputed else (NO_RECOMPUTE,)  # only blocks ever are
        places, sizes = _set_places(pattern, names), np.array([*buffers.values()])
        kept_bytes[program] = places.kept @ sizes
        if len(places.segments):
            segment_bytes[program] = (places.repeats * (places.segments @ sizes)).max(1)
        if program < recomputed:
            work = works[program]
            working, tiles, forward, forward_tiles, gradients, put_off = map(np.array, work.at_steps[:6])
            held = places.held_bytes(places.changes, sizes)
            untiled = held + working
            steps, activations, weight_gradients = np.array(work.at_weights).reshape(-1, 3).T
            at_weights.append((untiled[:, steps.astype(int)] + activations, weight_gradients))
            for steps, most in work.moments.in_front:
                again = untiled[:, steps].max(1) - kept_bytes[program] - most
                again_bytes[program] = np.maximum(again_bytes[program], again)
            if len(places.waiting_twice[0]):
                twice = places.held_bytes(places.waiting_twice, sizes)
                put_off, by_set[WAITING_TWICE, program] = put_off + twice, twice[:, 0]
            for place, needed in ((FULLEST, untiled), (FULLEST_WAITING, untiled + put_off)):
                heaviest = (needed + tiles).argmax(1)
                same = {step: tiles[step] + fixed_bytes_of(work.program, step) for step in {*heaviest.tolist()}}
                fixed_by_set[place, program] = [same[step] for step in heaviest.tolist()]
                by_set[place, program] = (needed + tiles).max(1) - fixed_by_set[place, program]
                if tiles.any():
                    by_set[place + 1, program] = needed.max(1)
            again = held + places.held_bytes(places.replay_changes, sizes) if len(places.spans) else held
            for place, at_last in ((FORWARD, gradients), (FORWARD_WAITING, gradients + put_off)):
                at_forward = places, held + forward, again + forward, at_last
                by_set[place, program], _ = _fullest_forward(*at_forward, None)
                if forward_tiles.any():
                    by_set[place + 1, program] = by_set[place, program]
                    fullest = _fullest_forward(*at_forward, forward_tiles)
                    by_set[place, program], fixed_by_set[place, program] = fullest
    none, working_of = np.zeros(len(works)), columns.working
    slopes = by_set.ravel(), working_of.growing, working_of.untiled, columns.waiting_bytes
    fixed_bytes = np.concatenate((fixed_by_set.ravel(), working_of.fixed, none, none))
    return SetBytes(np.concatenate(slopes), fixed_bytes, at_weights)


def kept_by_set(program: Program, view: str, recompute: tuple[str, ...]) -> Array:
    """Bytes of a view that a microbatch of one sequence keeps, quantised or not, (set,)."""
    pattern, buffers = recomputing(program)
    sizes = [size * (name.removesuffix(QUANTIZED) == view) for name, size in buffers.items()]
    kept: Array = _set_places(pattern, recompute).kept @ np.array(sizes)
    return kept


def _fullest_forward(
    places: _SetPlaces, at_first: Array, again: Array, at_last: Array, tiles: Array | None
) -> tuple[Array, Array]:
    """(bytes at the fullest step of forward but for its tile, bytes of that tile), by set. at_first, again: bytes at
    each step, but for tiles, where it runs for the first time and where it runs again, (set, step). at_last: bytes that
    are there besides where steps run again from it on, to the front, by step, or (set, step). tiles: by step; None:
    without tiles."""
    if tiles is not None:
        at_first, again = at_first + tiles, again + tiles
    needed = np.zeros((len(at_first), 1 + len(places.spans)))
    needed[:, 0] = at_first.max(1, initial=0.0)
    for place, (start, stop, last) in enumerate(places.spans, 1):
        needed[:, place] = again[:, start:stop].max(1, initial=0.0) + at_last[..., last]
    needed[:, 1:] *= places.repeats
    most = needed.max(1)
    if tiles is None:
        return most, np.zeros_like(most)
    spans = (slice(None), *(slice(start, stop) for start, stop, _ in places.spans))

    def tile_of(span: int, by_step: Array) -> float:
        inside = by_step[spans[span]]
        return tiles[spans[span]][inside.argmax()] if len(inside) else 0.0  # of a segment with nothing to run again

    of_sets = zip(needed.argmax(1).tolist(), at_first, again, strict=True)
    tile = np.array([tile_of(span, again_ if span else first) for span, first, again_ in of_sets])
    return most - tile, tile


class _SetPlaces(NamedTuple):
    """The meaning of recompute sets for programs of one pattern, 1 where it is so, else 0. kept: (set, buffer), whether
    it is kept. segments: (segment, buffer), whether the replay of a segment that some set runs again saves it. spans:
    start, replay_stop and last of each. repeats: (set, segment), whether the set does. in_sums: (step, set), whether
    backward repeats the step. changes: the step from which a buffer is there or no longer, counted through the sets,
    the buffer, and 1 or -1, (change,) each. replay_changes: of further ones, while a step runs again. waiting_twice: of
    those that wait for gradients of weights a second time."""

    kept: Array
    segments: Array
    spans: Sequence[tuple[int, int, int]]
    repeats: Array
    in_sums: Array
    changes: tuple[Array, Array, Array]
    replay_changes: tuple[Array, Array, Array]
    waiting_twice: tuple[Array, Array, Array]

    def held_bytes(self, changes: tuple[Array, Array, Array], sizes: Array) -> Array:
        """Bytes of a microbatch, kept or run again, that are there at each step by these changes, (set, step). sizes:
        of buffers."""
        steps, sets = self.in_sums.shape
        step, place, sign = changes
        added = np.bincount(step, sign * sizes[place], sets * (steps + 1)).reshape(sets, steps + 1)
        held: Array = added.cumsum(1)[:, :-1]
        return held


@lru_cache(maxsize=1024)
def _set_places(pattern: Pattern, recompute: tuple[str, ...]) -> _SetPlaces:
    buffers = 1 + max((place for step in pattern.steps for places in step[:3] for place in places), default=-1)
    repeated = [[one for one in pattern.segments(name) if one.recomputed] for name in recompute]
    segments = {one: place for place, one in enumerate(dict.fromkeys(one for several in repeated for one in several))}
    kept, of_segments = np.zeros((len(recompute), buffers)), np.zeros((len(segments), buffers))
    repeats, in_sums = np.zeros((len(recompute), len(segments))), np.zeros((len(pattern.steps), len(recompute)))
    for place, (name, several) in enumerate(zip(recompute, repeated, strict=True)):
        kept[place, pattern.kept(name)] = 1.0
        for segment in several:
            repeats[place, segments[segment]] = 1.0
            in_sums[segment.start : segment.replay_stop, place] = 1.0
    for segment, place in segments.items():
        of_segments[place, pattern.kept_of(segment.start, segment.stop, False)] = 1.0
    steps = len(pattern.steps) + 1

    def in_columns(changes_of: Callable[[str], tuple[Change, ...]]) -> tuple[Array, Array, Array]:
        by_set = [
            (place * steps + one.step, *one[1:]) for place, name in enumerate(recompute) for one in changes_of(name)
        ]
        step, buffer, sign = np.array(by_set, dtype=int).reshape(-1, 3).T
        return step, buffer, sign

    spans = [(one.start, one.replay_stop, one.last) for one in segments]
    changes = map(in_columns, (pattern.changes, pattern.replay_changes, pattern.waiting_twice))
    return _SetPlaces(kept, of_segments, spans, repeats, in_sums, *changes)


class _Sums(NamedTuple):
    """Numbers of programs: (microbatch, ...), for a local shape or for all of them.

    forward_s, backward_s: (microbatch, n, 5) of Seconds.values, and (microbatch, n, 6), with what may be put off.
    again_s: of forward, what each of the r programs with blocks repeats, (microbatch, r, set, 5). bytes: as
    SetBytes.slope_bytes.
    """

    forward_s: Array
    backward_s: Array
    again_s: Array
    bytes: Array


def _sums(sequences: Array, forward_s: Array, backward_s: Array, sets: SetColumns, of_bytes: SetBytes | None) -> _Sums:
    """Numbers of one local shape. forward_s, backward_s: by step, (5, size x step) and (6, size x step). of_bytes:
    None where all bytes are 0."""
    sizes = len(sequences)
    of_steps, of_steps_back = (seconds.reshape(len(seconds), sizes, -1) for seconds in (forward_s, backward_s))
    forward_s, backward_s = (
        np.add.reduceat(seconds, sets.begins, axis=2).transpose(1, 2, 0) for seconds in (of_steps, of_steps_back)
    )
    # a product for each program: one of all were mostly zeros, and large enough for threads that wait for each other
    again_s = [
        of_steps[:, :, begin : begin + len(repeats)] @ repeats
        for begin, repeats in zip(sets.begins.tolist(), sets.repeats, strict=False)
    ]
    of_sets = np.stack(again_s, 1).transpose(2, 1, 3, 0)
    if of_bytes is None:
        programs, count = len(sets.begins), of_sets.shape[2]
        return _Sums(forward_s, backward_s, of_sets, np.zeros((sizes, programs * (BY_SET * count + BY_PROGRAM))))
    bytes_of_all: Array = of_bytes.fixed_bytes + sequences[:, None] * of_bytes.slope_bytes
    count = of_sets.shape[2]
    start = AT_WEIGHTS * len(sets.begins) * count
    for place, (slopes, fixed) in enumerate(of_bytes.at_weights):
        at_steps = sequences[:, None, None] * slopes + fixed
        bytes_of_all[:, start + place * count : start + (place + 1) * count] = at_steps.max(2, initial=0.0)
    return _Sums(forward_s, backward_s, of_sets, bytes_of_all)


def _parts(sums: _Sums, sets: int, kinds: int, opens: Array, has_first: bool) -> list[Part | None]:
    """The parts of `part_numbers` over (microbatch, set); None where no table is shared. kinds: of blocks. opens:
    (set,), whether a set repeats the first operator of a block. has_first: whether there is a program of the first
    one."""
    programs, recomputed = sums.backward_s.shape[1], kinds + has_first
    by_set, by_program = np.split(sums.bytes, [BY_SET * programs * sets], axis=1)
    of_sets = by_set.reshape(-1, BY_SET, programs, sets).transpose(1, 2, 0, 3)
    kept_bytes, segment_bytes, again_bytes, at_weights_bytes, *fullest_bytes, twice_bytes = of_sets
    tiled, untiled, waiting_bytes = by_program.reshape(-1, BY_PROGRAM, programs, 1).transpose(1, 2, 0, 3)
    working_bytes = np.maximum(tiled, untiled)
    most, most_waiting = (reduce(np.maximum, fullest_bytes[place : place + 4]) for place in (0, 4))
    replay_bytes = np.maximum(0.0, most - kept_bytes - working_bytes)
    for_weights_bytes = np.maximum(0.0, most_waiting - np.maximum(most, kept_bytes + working_bytes))
    forward_s, backward_s = (seconds.transpose(2, 1, 0)[..., None] for seconds in (sums.forward_s, sums.backward_s))
    parts = []
    for program in range(programs):
        again = Seconds(*sums.again_s[:, program].transpose(2, 0, 1)) if program < recomputed else Seconds()
        parts.append(
            Part(
                Seconds(*forward_s[:, program]),
                again,
                Seconds(*backward_s[:5, program]),
                kept_bytes[program],
                replay_bytes[program],
                working_bytes[program],
                {},
                segment_bytes=segment_bytes[program],
                again_bytes=again_bytes[program],
                at_weights_bytes=at_weights_bytes[program] - kept_bytes[program],
                weight_gradients_s=backward_s[5, program],
                weights_waiting_bytes=waiting_bytes[program] + twice_bytes[program],
                for_weights_bytes=for_weights_bytes[program],
            )
        )
    (block, *others), first, (embedding, head, *tied) = parts[:kinds], parts[kinds:recomputed], parts[recomputed:]
    stage = assembled(block, first[0] if first else None, embedding, head, tied[0] if tied else None, opens)
    return [stage.block, stage.embedding, stage.head, stage.tied_ends, *others]
