"""A rank's work for a pipeline stage as instructions in order: the runtime runs them, a plan counts their graphs.

Instructions are in sections, some of which backward runs again. Within a section a run of operators that compute on
local tensors alone can be compiled into one function; collectives lie between such runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Protocol, TypeVar

from autoshard.graph.count import Collective, backward_collectives, forward_collectives, parameter_elements
from autoshard.graph.ir import Graph
from autoshard.graph.operators import split_norm_dims
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep, Step, learns_projection
from autoshard.graph.recompute import block_of, segments
from autoshard.layout.buckets import (
    BucketKey,
    bucket_elements,
    bucket_key,
    padded_elements,
    runs_of_shard,
    tied_parameters,
    units,
)
from autoshard.layout.mesh import Mesh
from autoshard.models.stage import published_sizes
from autoshard.plans.plan import Plan
from autoshard.plans.step_collectives import step_collectives
from autoshard.schedules import SCHEDULES

_KINDS = (
    *("einsum", "elementwise", "norm", "rope", "slice", "concat"),
    *("embedding", "cross_entropy", "top_k_gate", "dispatch", "combine"),
)
_ONE_FUNCTION = ("einsum", "embedding", "add", "scale", "gelu", "gelu_erf", "slice", "concat")
"""Operators for which torch has one function: alone, there is nothing to fuse them with."""
Unit = TypeVar("Unit")


@dataclass(frozen=True)
class Instruction:
    """An instruction: read views, compute, write views. released: views that nothing reads later. brings_weights:
    whether it is no step of the program, but gathers parameters that are whole only while they are read. signature: of
    an operator that may be compiled. run: None where nobody runs it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Any = None
    released: tuple[str, ...] = ()
    brings_weights: bool = False
    signature: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class Section:
    """Instructions that run together; a recomputed section keeps only `inputs`, and releases those that are read last
    here."""

    instructions: tuple[Instruction, ...]
    recomputed: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...]

    @cached_property
    def steps(self) -> tuple[tuple[Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]:
        """Instructions as plain tuples (run, inputs, outputs, released): the loop over these is all that a step costs
        beside its operators."""
        return tuple((one.run, one.inputs, one.outputs, one.released) for one in self.instructions)


def sections(
    program: Program,
    recompute: str,
    make: Callable[[Step], Instruction],
    unit_of: Mapping[str, Unit],
    bring: Callable[[Unit], Instruction],
) -> tuple[Section, ...]:
    """The recompute segments and what lies between them; every view is released after its last reader.

    make: from a step to its instruction. unit_of: parameters that are whole only while they are read, by name -> those
    that are gathered together. bring: from these to the instruction that gathers them.
    """
    apart = dict(unit_of)
    parameters = {tensor.name for tensor in program.graph.parameters()} - apart.keys()
    runs: list[tuple[list[Instruction], bool]] = []

    def append(chunk: list[Instruction], recomputed: bool) -> None:
        if runs and not recomputed and not runs[-1][1]:
            runs[-1][0].extend(chunk)
        elif chunk:
            runs.append((chunk, recomputed))

    for segment in segments(program, recompute):
        chunk: list[Instruction] = []
        for index in range(segment.start, segment.stop):
            one = make(program.steps[index])
            if segment.recomputed and index >= segment.replay_stop:  # compiled, it would be part of what is replayed
                one = replace(one, signature=())
            for bringing in _bringing(one, apart, bring):
                if segment.recomputed:  # what a replay reads is given to it
                    append([bringing], False)
                else:
                    chunk.append(bringing)
            chunk.append(one)
        append(chunk, segment.recomputed)
    found: list[Section] = []
    needed = set(program.outputs) | parameters
    for chunk, recomputed in reversed(runs):
        written = {view for one in chunk for view in one.outputs}
        read = dict.fromkeys(view for one in chunk for view in one.inputs if view not in written)
        inputs = tuple(view for view in read if view not in parameters)
        outputs = tuple(view for one in chunk for view in one.outputs if view in needed)
        released = tuple(view for view in inputs if view not in needed)
        found.append(Section(_releasing(chunk, needed), recomputed, inputs, outputs, released))
        needed |= set(inputs)
    return tuple(reversed(found))


def _bringing(one: Instruction, apart: dict[str, Unit], bring: Callable[[Unit], Instruction]) -> Iterator[Instruction]:
    """Yields instructions that gather parameters which this instruction is the first to read; removes these from
    apart."""
    while (found := next((apart[name] for name in one.inputs if name in apart), None)) is not None:
        bringing = bring(found)
        for name in bringing.outputs:
            del apart[name]
        yield bringing


def _releasing(chunk: Sequence[Instruction], needed_later: set[str]) -> tuple[Instruction, ...]:
    """The same instructions, each of which releases views that it is the last to read or that nobody reads."""
    needed, found = set(needed_later), []
    for one in reversed(chunk):
        released = dict.fromkeys(view for view in (*one.inputs, *one.outputs) if view not in needed)
        found.append(replace(one, released=tuple(released)))
        needed |= set(one.inputs)
    return tuple(reversed(found))


class Place(Protocol):
    """A rank's place in the mesh of a program. weights_apart: whether the schedule computes gradients of weights by
    themselves. piece: (position, count) of its piece of a loop dim while an operator runs. dims: of a tensor."""

    @property
    def graph(self) -> Graph: ...
    @property
    def weights_apart(self) -> bool: ...
    def piece(self, step: OperatorStep, dim: str) -> tuple[int, int]: ...
    def dims(self, tensor: str) -> tuple[str, ...]: ...


def signature(place: Place, step: OperatorStep, attends: bool = False) -> tuple[Hashable, ...]:
    """Everything that decides what the operator computes from its inputs on this rank; empty where it is not
    compiled. attends: attention that nothing but causality masks is compiled, too."""
    op, graph = step.operator, place.graph
    if (
        not (op.kind in _KINDS or (attends and op.kind == "attention" and _is_plainly_causal(place, step)))
        or (op.kind == "einsum" and place.weights_apart and learns_projection(graph, op))
        or (op.kind == "norm" and any(place.piece(step, dim)[1] > 1 for dim in split_norm_dims(op)))
        or (op.kind == "cross_entropy" and place.piece(step, "vocab")[1] > 1)
        or op.attributes.get("aux_loss_coef")
    ):
        return ()
    dims = tuple(place.dims(name) for name in (*op.inputs, op.output))
    pieces = tuple((dim, graph.sizes[dim], *place.piece(step, dim)) for dim in op.loop_dims)
    return op.attributes.get("function", op.kind), op.kind, dims, pieces, repr(sorted(op.attributes.items()))


def _is_plainly_causal(place: Place, step: OperatorStep) -> bool:
    """Whether attention is a function of q, k and v alone: nothing is communicated, dropped, or masked but by
    causality."""
    attributes, seq = step.operator.attributes, place.graph.sizes["seq"]
    window: Any = attributes["sliding_window"]
    is_whole = place.piece(step, "seq")[1] == 1 and (window is None or window >= seq)
    return is_whole and not (attributes.get("documents") or attributes.get("chosen") or attributes.get("dropout"))


def compiled_runs(
    section: Section, by_block: bool = False, whole: bool = False
) -> Iterator[tuple[list[Instruction], bool]]:
    """Yields the section's instructions in runs, each with whether it is compiled into one function.

    by_block: a run ends with its block, so that graphs do not grow with the stage, and equal blocks share them. whole:
    all instructions are one run, collectives too.
    """
    if whole:
        yield list(section.instructions), True
        return

    def together(one: Instruction) -> tuple[bool, str]:
        block = block_of(one.name)  # its own name, outside of blocks
        return bool(one.signature), block if by_block and block != one.name else ""

    for _, run in groupby(section.instructions, key=together):
        chunk = list(run)
        first = chunk[0].signature
        yield chunk, bool(first) and (len(chunk) > 1 or first[0] not in _ONE_FUNCTION)


@dataclass(frozen=True)
class Wiring:
    """A run of operators as one function.

    inputs, outputs, released: views that it reads, writes and releases. reads: for each operator the places of its
    inputs among all values: inputs, two tables for each rotation, results so far. leaving: the places of the outputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    leaving: tuple[int, ...]
    signatures: tuple[tuple[Hashable, ...], ...]

    @property
    def kind(self) -> Hashable:
        """A value that is the same for equal functions, whatever their views are called."""
        return self.signatures, self.reads, self.leaving

    @staticmethod
    def of(run: Sequence[Instruction]) -> Wiring:
        released = {view for one in run for view in one.released}
        written = [view for one in run for view in one.outputs]
        inputs = tuple(dict.fromkeys(view for one in run for view in one.inputs if view not in written))
        outputs = tuple(view for view in written if view not in released)
        count = len(inputs) + 2 * sum(map(is_rotation, run))
        tables = iter(range(len(inputs), count))
        places = {view: place for place, view in enumerate(inputs)}
        reads, results = [], iter(range(count, count + len(written)))
        for one in run:
            own = tuple(places[view] for view in one.inputs)
            reads.append((*own, next(tables), next(tables)) if is_rotation(one) else own)
            for view in one.outputs:
                places[view] = next(results)
        leaving = tuple(places[view] for view in outputs)
        signatures = tuple(one.signature for one in run)
        return Wiring(
            inputs, outputs, tuple(view for view in inputs if view in released), tuple(reads), leaving, signatures
        )


def is_rotation(one: Instruction) -> bool:
    """Whether the instruction rotates, and so takes two tables beside its inputs."""
    return bool(one.signature) and one.signature[1] == "rope"


@dataclass(frozen=True)
class RankGraphs:
    """The graphs that one rank compiles for a step, and whom it communicates with beside them.

    segments: runs of operators between collectives. distinct: different ones among them; each is a graph forward and
    one backward. operators: of the distinct ones together. functions: graphs of the gradient's norm, one for
    each size of a shard, and of the optimizer: one for each size with weight decay and without, or where weights are
    rounded at random one for each kind of parameter.
    communicators: groups of two ranks or more in which the rank communicates on its device. inside: the most in one
    graph, none where graphs end at collectives. Where whole stages are compiled, each is a segment, and redistributions
    are operators of it.
    """

    segments: int
    distinct: int
    operators: int
    functions: int
    communicators: int
    inside: int = 0

    @property
    def graphs(self) -> int:
        return 2 * self.distinct + self.functions


def rank_graphs(plan: Plan, rank: int) -> RankGraphs:
    """The graphs of a rank where all is compiled that the runtime compiles on native Neuron."""
    pipeline_rank, index = plan.mesh.coordinates(rank)
    programs = plan.stage_programs
    tied = tied_parameters(programs[0], programs[len(programs) - 1])
    mine = [stage.index for stage in plan.stages if stage.pipeline_rank == pipeline_rank]
    wirings = []
    for stage in mine:
        for section in _held(plan, programs[stage], index, tied, plan.strategy.recompute[stage]):
            runs = compiled_runs(section, by_block=True, whole=plan.cluster.compiles_stages)
            wirings += [Wiring.of(run) for run, compiled in runs if compiled]
    held = [programs[stage] for stage in mine]
    buckets = bucket_elements(held, plan.mesh, tied, plan.strategy.zero)
    zero, mesh = plan.strategy.zero, plan.mesh
    learned = [
        (count // (mesh.size(key.shard_axes) if zero else 1), key) for key, count in buckets.items() if key.learned
    ]
    norms = len({size for size, _ in learned})
    updates = len({(size, key.decay) for size, key in learned if not key.orthogonal})  # Muon's is not compiled
    if plan.training.precision.rounds_at_random:
        updates = len(set(_rounded(plan, held, index, tied)))
    together = communicators(plan, rank, step_collectives(plan, pipeline_rank), plan.strategy.pp > 1)
    inside = max(_inside(plan, rank, programs[stage]) for stage in mine) if plan.cluster.compiles_stages else 0
    return counted(wirings, plan.cluster.compiles_stages, norms + updates, len(together), inside)


def counted(wirings: Sequence[Wiring], whole: bool, functions: int, communicators: int, inside: int = 0) -> RankGraphs:
    """The counts of a rank that compiles these runs. whole: each is a stage, and shares its graphs with no other."""
    distinct = {place if whole else one.kind: len(one.signatures) for place, one in enumerate(wirings)}
    return RankGraphs(len(wirings), len(distinct), sum(distinct.values()), functions, communicators, inside)


def _inside(plan: Plan, rank: int, program: Program) -> int:
    """The most groups in which a pass through a stage communicates."""
    passes: list[set[tuple[int, ...]]] = []
    for collectives in (forward_collectives, backward_collectives):
        groups = {plan.mesh.group(rank, axes) for step in program.steps for _, axes, _ in collectives(program, step)}
        passes.append({ranks for ranks in groups if len(ranks) > 1})
    return max(map(len, passes))


def communicators(plan: Plan, rank: int, issued: Iterable[Collective], sends: bool) -> frozenset[tuple[int, ...]]:
    """The groups of two ranks or more in which a rank communicates, each as its ranks in order.

    issued: collectives of the rank's step; those over pp alone sum what the first and the last stage share. sends:
    whether it also sends to neighbouring stages: in the group of its pipeline, or without point to point in a group of
    two with each.
    """
    mesh = plan.mesh
    pipeline = mesh.group(rank, ("pp",))
    groups = {pipeline} if sends else set()
    if sends and not plan.cluster.has_p2p:
        wraps = plan.strategy.num_virtual_stages > 1
        groups = {pair for pair in neighbours(pipeline, wraps) if rank in pair}
    for one in issued:
        ranks = mesh.group(rank, one.axes)
        groups.add((ranks[0], ranks[-1]) if one.axes == ("pp",) else ranks)
    return frozenset(tuple(sorted(ranks)) for ranks in groups if len(ranks) > 1)


def neighbours(pipeline: Sequence[int], wraps: bool) -> tuple[tuple[int, int], ...]:
    """Pairs (sender, receiver) of a pipeline's ranks, in both directions.

    wraps: whether the last rank sends to the first, as where ranks have several stages.
    """
    following = [*pairwise(pipeline), *([(pipeline[-1], pipeline[0])] if wraps else [])]
    return tuple(dict.fromkeys(way for a, b in following for way in ((a, b), (b, a))))


def _rounded(
    plan: Plan, programs: Sequence[Program], index: Mapping[str, int], tied: frozenset[str]
) -> Iterator[Hashable]:
    """Yields what the update of each run of a parameter depends on, where weights are rounded at random by place."""
    mesh, zero, published = plan.mesh, plan.strategy.zero, published_sizes(plan.model)
    known: dict[str, Hashable] = {}
    buckets: dict[BucketKey, dict[str, int]] = {}
    for program in programs:
        elements = parameter_elements(program)
        for tensor in program.graph.learned():
            key = bucket_key(program, tensor.name, mesh, tied, zero)
            buckets.setdefault(key, {})[tensor.name] = elements[tensor.name]
            sizes = [(published.get(dim, program.graph.sizes[dim]), program.graph.sizes[dim]) for dim in tensor.dims]
            split = [tensor.dims.index(one) if one in tensor.dims else None for one in program.states[tensor.name]]
            known[tensor.name] = (tuple(sizes), tuple(split))
    for key, names in buckets.items():
        axes = key.shard_axes if zero else ()
        elements_of_shard = padded_elements(key, sum(names.values()), mesh, zero) // mesh.size(axes)
        begin = mesh.position(index, axes) * elements_of_shard
        for run in runs_of_shard(names, begin, elements_of_shard):
            yield known[run.name], run.skipped, run.elements


@dataclass(frozen=True)
class _Planned:
    """A rank's place, as `Place` has it."""

    program: Program
    mesh: Mesh
    index: Mapping[str, int]
    weights_apart: bool

    @property
    def graph(self) -> Graph:
        return self.program.graph

    def piece(self, step: OperatorStep, dim: str) -> tuple[int, int]:
        axes = tuple(axis for axis in self.program.axes if step.choice.get(axis) == dim)
        return self.mesh.position(self.index, axes), self.mesh.size(axes)

    def dims(self, tensor: str) -> tuple[str, ...]:
        return self.graph.tensors[tensor].dims


def _held(
    plan: Plan, program: Program, index: Mapping[str, int], tied: frozenset[str], recompute: str
) -> tuple[Section, ...]:
    """The sections of a stage, with nothing that runs."""
    place = _Planned(program, plan.mesh, index, SCHEDULES[plan.strategy.schedule].weights_apart)

    def make(step: Step) -> Instruction:
        if isinstance(step, OperatorStep):
            return Instruction(
                step.operator.name, step.inputs, (step.operator.output,), signature=signature(place, step, attends=True)
            )
        if isinstance(step, RedistributeStep):
            return Instruction("", (step.source,), (step.target,))
        weights = tuple(one.inputs[1] for one in step.einsums)
        return Instruction("", (step.gather.source, *weights), tuple(one.operator.output for one in step.einsums))

    together = units(program, plan.mesh, tied, plan.strategy.zero).values()
    unit_of = {name: names for names in together for name in names}
    return sections(program, recompute, make, unit_of, lambda names: Instruction("", (), names, brings_weights=True))
