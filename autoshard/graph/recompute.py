"""Recompute sets: which steps of a block run again in backward, and which activations then stay in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.count import QUANTIZED, operator_steps, saved_activations
from autoshard.graph.ir import Operator, Tensor
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step
from autoshard.graph.weight_gradients import waiting_inputs

BLOCK_MODULES = ("attention_norm", "attention", "core_attention", "mlp_norm", "mlp", "residual")
"""Modules of a transformer block; embedding and head lie outside of every recompute set."""

ATTENTION_UP = "attention_up"
PART_OF = {ATTENTION_UP: "attention"}
"""Module -> the one that it is a part of: the products behind latent attention's compressed vectors, and what turns and
joins their results. A set that names the whole names the part."""

NO_RECOMPUTE, FULL_RECOMPUTE = "none", "full"
SELECTIVE, SELECTED = "selective", "core_attention"
"""Megatron and NxD Training call core attention alone selective."""

COMMON_SETS = (NO_RECOMPUTE, "core_attention", "core_attention+mlp", FULL_RECOMPUTE)
"""Least first. NxD Training: selective [CoreAttention] and selective [CoreAttention, LlamaMLP]."""

FORM = f"none, selective, full, or modules ({', '.join(BLOCK_MODULES)}) and operators of a block joined by +"


@lru_cache(maxsize=1024)
def members(recompute: str) -> frozenset[str]:
    """Names of the modules and operators in a recompute set: none of them for "none", all modules for "full"."""
    if recompute == NO_RECOMPUTE:
        return frozenset()
    return frozenset(BLOCK_MODULES) if recompute == FULL_RECOMPUTE else frozenset(recompute.split("+"))


def canonical(recompute: str) -> str:
    """The one way to write a recompute set: modules in the order of a block, then operators in alphabetical order.

    Raises AutoshardError for a text that is no set; `check_members` says whether a block has what the set names.
    """
    if recompute in (NO_RECOMPUTE, FULL_RECOMPUTE):
        return recompute
    if recompute == SELECTIVE:
        return SELECTED
    named, alone = members(recompute), {NO_RECOMPUTE, SELECTIVE, FULL_RECOMPUTE}
    if not all(re.fullmatch(r"[A-Za-z_][\w.]{0,99}", name) for name in named) or named & alone:
        raise AutoshardError(f"recompute={show(recompute)} must be {FORM}")
    if named >= set(BLOCK_MODULES):
        return FULL_RECOMPUTE
    named -= {part for part, whole in PART_OF.items() if whole in named}
    order = [one for name in BLOCK_MODULES for one in (name, *(part for part in PART_OF if PART_OF[part] == name))]
    return "+".join([name for name in order if name in named] + sorted(named.difference(order)))


def check_members(recompute: str, block: Iterable[Operator]) -> None:
    """Raise AutoshardError where a recompute set names something that is neither an operator nor a module of
    the block.
    """
    block = tuple(block)
    known = [name_in_block(op.name) for op in block]
    parts = {op.module for op in block if op.module in PART_OF}
    for name in sorted(members(recompute).difference(BLOCK_MODULES, parts, known)):
        raise AutoshardError(
            f"recompute={recompute}: a block has no {name}; a set is {FORM}; operators here: {', '.join(known)}"
        )


def is_recomputed(op: Operator, recompute: str) -> bool:
    """Whether a recompute set names the operator or its module."""
    return in_block(op) and _is_named(op.module, op.name, recompute)


def _is_named(module: str, name: str, recompute: str) -> bool:
    """Whether a recompute set names a module of a block, or the operator in it."""
    return not members(recompute).isdisjoint((module, PART_OF.get(module), name_in_block(name)))


def in_block(op: Operator) -> bool:
    """Whether the operator belongs to a block, not to embedding or head."""
    return op.module in BLOCK_MODULES or op.module in PART_OF


@dataclass(frozen=True)
class Segment:
    """Steps [start, stop) of the program. recomputed: whether backward runs [start, replay_stop) forward again."""

    start: int
    stop: int
    recomputed: bool
    replay_stop: int

    @property
    def last(self) -> int:
        """The step whose backward, the last of the segment's, needs what the others save: before it they run again."""
        return min(self.replay_stop, self.stop - 1)


def segments(program: Program, recompute: str) -> tuple[Segment, ...]:
    """The program's steps in segments, cut where membership in the recompute set changes.

    A redistribution belongs to the module of the operator that reads it first. Each block ends its segment.
    """
    return recomputing(program).pattern.segments(recompute)


Owner = tuple[str, str]
"""(module, name) of an operator of a block."""


@lru_cache(maxsize=4096)
def _cuts(owners: tuple[Owner | None, ...], recompute: str) -> tuple[tuple[int, int, bool], ...]:
    """(start, stop, whether backward runs them again) of the segments. Programs of many shards have the same owners."""
    keys = [block_of(owner[1]) if owner and _is_named(*owner, recompute) else None for owner in owners]
    cuts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]] + [len(keys)]
    return tuple((start, stop, keys[start] is not None) for start, stop in pairwise(cuts))


class StepBuffers(NamedTuple):
    """The buffers of one step, as places among all that a program names: those that it saves for its backward, the
    views that it reads (but for parameters), those that it writes, and of those that it saves the ones that gradients
    of its weights need. computes: whether it saves something that it did not read."""

    saved: tuple[int, ...]
    read: tuple[int, ...]
    written: tuple[int, ...]
    for_weights: tuple[int, ...]
    computes: bool


class Change(NamedTuple):
    """A buffer is there from a step on (sign 1), or no longer (-1). place: of the buffer."""

    step: int
    place: int
    sign: int


@dataclass(frozen=True, eq=False)
class Pattern:
    """The meaning of recompute sets for all programs whose steps save, read and write buffers alike, whatever these are
    called and however large they are. Remembers its answers.

    owners: for each step, the operator of a block with which it runs again, if any. steps: their buffers.
    """

    owners: tuple[Owner | None, ...]
    steps: tuple[StepBuffers, ...]
    _segments: dict[str, tuple[Segment, ...]] = field(default_factory=dict)
    _changes: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    _waiting_twice: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    _kept: dict[tuple[int, int, bool], tuple[int, ...]] = field(default_factory=dict)
    _replay_stops: dict[tuple[int, int], int] = field(default_factory=dict)

    def segments(self, recompute: str) -> tuple[Segment, ...]:
        """The steps of such a program in segments, cut where membership in the recompute set changes."""
        if recompute not in self._segments:
            self._segments[recompute] = tuple(
                Segment(start, stop, again, self._replay_stop(start, stop))
                for start, stop, again in _cuts(self.owners, recompute)
            )
        return self._segments[recompute]

    def kept(self, recompute: str) -> tuple[int, ...]:
        """Places of the buffers of `kept_activations`."""
        several = (self.kept_of(one.start, one.stop, one.recomputed) for one in self.segments(recompute))
        return tuple(dict.fromkeys(place for places in several for place in places))

    def changes(self, recompute: str) -> tuple[Change, ...]:
        """Which buffers of a microbatch are there while the backward of each step runs: the changes, as steps rise.

        What is kept is there until the first step that saved it has run backward, or, of what a segment that runs again
        reads, that segment has run again, unless it saves this itself; what that segment saves when it runs again,
        while it runs backward.
        """
        if recompute not in self._changes:
            every, since = self.segments(recompute), self._since(recompute)
            changes = [Change(step, place, 1) for place, step in since.items()]
            for one in every:
                for place, step in self.first_saved(one.start, one.stop).items() if one.recomputed else ():
                    if since.get(place, one.stop) > step:
                        changes += Change(step, place, 1), Change(min(one.stop, since.get(place, one.stop)), place, -1)
            self._changes[recompute] = tuple(changes)
        return self._changes[recompute]

    def replay_changes(self, recompute: str) -> tuple[Change, ...]:
        """Which further buffers are there while each step runs again: what its segment reads, all of it."""
        since = self._since(recompute)
        return tuple(
            change
            for one in self.segments(recompute)
            for place in (self.kept_of(one.start, one.stop, True) if one.recomputed else ())
            if (until := min(since[place], one.stop)) > one.start
            for change in (Change(one.start, place, 1), Change(until, place, -1))
        )

    def waiting_twice(self, recompute: str) -> tuple[Change, ...]:
        """Which buffers wait a second time for gradients of weights that are put off while the backward of each step
        runs: the changes, as steps rise; what does from the first step on does when all is over.

        A segment that runs again writes what it computes anew, for its own weights. Steps behind it, such as those of
        an MLP that reads the same gathered norm, have kept the first one, which waits for theirs.
        """
        if recompute not in self._waiting_twice:
            self._waiting_twice[recompute] = tuple(
                change for one in self.segments(recompute) if one.recomputed for change in self._waiting_behind(one)
            )
        return self._waiting_twice[recompute]

    def _waiting_behind(self, segment: Segment) -> Iterator[Change]:
        """The part of `waiting_twice` of what one segment that runs again writes."""
        behind = self.steps[segment.stop :]
        written = {place for step in self.steps[segment.start : segment.replay_stop] for place in step.written}
        waits = written.intersection(place for step in behind for place in step.for_weights)
        if not waits:
            return
        own = {place for step in self.steps[segment.start : segment.stop] for place in step.for_weights}
        saved = self.first_saved(segment.start, segment.stop)
        first = self.first_saved(segment.stop, len(self.steps))
        for place in sorted(waits):
            if place in saved:
                yield Change(0 if place in own else saved[place], place, 1)
                yield Change(first[place], place, -1)

    def _since(self, recompute: str) -> dict[int, int]:
        """Place of what is kept -> the first step during whose backward it is there."""
        since: dict[int, int] = {}
        for one in self.segments(recompute):
            first = self.first_saved(one.start, one.stop)
            for place in self.kept_of(one.start, one.stop, one.recomputed):
                since[place] = min(since.get(place, one.stop), first.get(place, one.stop))
        return since

    def first_saved(self, start: int, stop: int) -> dict[int, int]:
        """Place -> the first step of [start, stop) that saves it."""
        first: dict[int, int] = {}
        for index in range(start, stop):
            for place in self.steps[index].saved:
                first.setdefault(place, index)
        return first

    def kept_of(self, start: int, stop: int, recomputed: bool) -> tuple[int, ...]:
        """Places of the buffers that the segment of steps [start, stop) keeps for backward."""
        segment = start, stop, recomputed
        if segment not in self._kept:
            steps = self.steps[start:stop]
            kept = [place for step in steps for place in step.saved]
            if recomputed and kept:
                written = {place for step in steps for place in step.written}
                kept = [place for step in steps for place in step.read if place not in written]
            self._kept[segment] = tuple(dict.fromkeys(kept))
        return self._kept[segment]

    def _replay_stop(self, start: int, stop: int) -> int:
        """One past the last step that backward must run again: no step behind the last saved tensor does.

        A step that keeps only its inputs need not run itself; one that keeps something it computes must.
        """
        if (start, stop) not in self._replay_stops:
            last = next((index for index in range(stop - 1, start - 1, -1) if self.steps[index].saved), None)
            self._replay_stops[start, stop] = start if last is None else last + self.steps[last].computes
        return self._replay_stops[start, stop]


_pattern = lru_cache(maxsize=4096)(Pattern)


class Recomputing(NamedTuple):
    """A program as recompute sets see it: its pattern, one object for all programs that have it, and the buffers that
    this knows by their places, name -> bytes on one rank."""

    pattern: Pattern
    buffers: Mapping[str, float]

    def named(self, places: Iterable[int]) -> dict[str, float]:
        """Name -> bytes of the buffers at these places."""
        every = [*self.buffers.items()]
        return dict(every[place] for place in places)


def recomputing(program: Program) -> Recomputing:
    """The pattern of a program and its buffers, found once."""
    known: Recomputing | None = program.__dict__.get("_recomputing")
    if known is None:
        known = program.__dict__["_recomputing"] = _recomputing(program)
    return known


def _recomputing(program: Program) -> Recomputing:
    buffers: dict[str, float] = {}
    places: dict[str, int] = {}

    def placed(sizes: Mapping[str, float]) -> tuple[int, ...]:
        buffers.update(sizes)
        return tuple(places.setdefault(name, len(places)) for name in sizes)

    def computed(view: str) -> str:
        return program.storages.get(view, view)

    steps = []
    for step in program.steps:
        saved = saved_activations(program, step)
        read, written = (
            {computed(view): float(program.local_bytes[view]) for view in views if _is_kept(program.tensor(view))}
            for views in (read_views(step), [view for view in _outputs(step) if computed(view) == view])
        )
        computes = not {computed(name.removesuffix(QUANTIZED)) for name in saved} <= read.keys()
        kept = placed({computed(name): size for name, size in saved.items()})
        for_weights = tuple(places[name] for name in waiting_inputs(program, step) if places.get(name) in kept)
        steps.append(StepBuffers(kept, placed(read), placed(written), for_weights, computes))
    return Recomputing(_pattern(_owners(program), tuple(steps)), buffers)


def _is_kept(tensor: Tensor) -> bool:
    """Whether a block that runs again keeps a tensor that it reads: parameters are there anyhow."""
    return tensor.role != "parameter" and tensor.counted


def _owners(program: Program) -> tuple[Owner | None, ...]:
    """For each step, the operator with which it runs again in backward; None for steps that never do.

    A redistribution runs again with the operator behind it. The one that brings the embedding's output into the first
    block's state does not: its replay would keep that output, unsummed, for every microbatch in flight.
    """
    outside = {op.output for op in program.graph.operators if not in_block(op)}
    owners: list[Owner | None] = []
    following: Operator | None = None
    for step in reversed(program.steps):
        if operators := operator_steps(step):
            following = operators[0].operator
        from_outside = isinstance(step, RedistributeStep) and step.source in outside
        runs_again = following is not None and in_block(following) and not from_outside
        owners.append((following.module, following.name) if following is not None and runs_again else None)
    return tuple(reversed(owners))


@lru_cache(maxsize=8192)
def block_of(operator: str) -> str:
    """'model.layers.3.mlp.down' -> 'model.layers.3'."""
    parts = operator.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: index + 1])


def name_in_block(operator: str) -> str:
    """'model.layers.3.mlp.down' -> 'mlp.down'."""
    return operator[len(block_of(operator)) + 1 :]


def kept_activations(program: Program, recompute: str) -> dict[str, float]:
    """Name -> bytes of the buffers that one microbatch keeps on one rank between its forward and its backward.

    A recomputed segment keeps its inputs. One whose backward needs nothing, such as a sum, keeps nothing and never runs
    again.
    """
    known = recomputing(program)
    return known.named(known.pattern.kept(recompute))


def held_bytes(program: Program, recompute: str) -> list[float]:
    """Bytes of a microbatch on one rank, kept or run again, that are there while the backward of each step runs."""
    known = recomputing(program)
    return _held_bytes(known, known.pattern.changes(recompute))


def replay_held_bytes(program: Program, recompute: str) -> list[float]:
    """The same while each step runs again."""
    known = recomputing(program)
    return _held_bytes(known, (*known.pattern.changes(recompute), *known.pattern.replay_changes(recompute)))


def waiting_twice_bytes(program: Program, recompute: str) -> list[float]:
    """Bytes of a microbatch on one rank that wait a second time for gradients of weights that are put off while the
    backward of each step runs; the first step's wait when all is over, too."""
    known = recomputing(program)
    return _held_bytes(known, known.pattern.waiting_twice(recompute))


def _held_bytes(known: Recomputing, changes: Iterable[Change]) -> list[float]:
    sizes, added = [*known.buffers.values()], [0.0] * (len(known.pattern.steps) + 1)
    for step, place, sign in changes:
        added[step] += sign * sizes[place]
    return [*accumulate(added[:-1])]


def replayed_activations(program: Program, segment: Segment) -> dict[str, float]:
    """Name -> bytes of the buffers that exist on one rank only while backward works through the segment: those that its
    replay saves."""
    known = recomputing(program)
    return known.named(known.pattern.kept_of(segment.start, segment.stop, False))


def read_views(step: Step) -> tuple[str, ...]:
    """Names of the tensors, or of their redistributed views, that the step reads."""
    if isinstance(step, RedistributeStep):
        return (step.source,)
    if isinstance(step, GatherEinsumStep):
        return (step.gather.source, *(view for one in step.einsums for view in one.inputs[1:]))
    return step.inputs


def _outputs(step: Step) -> tuple[str, ...]:
    if isinstance(step, RedistributeStep):
        return (step.target,)
    steps = step.einsums if isinstance(step, GatherEinsumStep) else (step,)
    return tuple(one.operator.output for one in steps)
