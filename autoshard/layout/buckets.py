"""Group parameters into flat buckets: those whose gradients need the same sums travel together.

Up to ZeRO-1 they travel once, at the end of a step. Under ZeRO-2 and ZeRO-3 each block has buckets of its own, whose
gradients are reduce-scattered as soon as a microbatch's backward is through with the block. Under ZeRO-3 weights that
are not learned have buckets of their own, too, which are gathered as others are. The runtime builds the buckets from
this; the cost model counts and prices their collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from autoshard.graph.count import operator_steps, parameter_elements
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep
from autoshard.graph.recompute import block_of, segments
from autoshard.graph.states import State
from autoshard.layout.mesh import REPLICA_AXES, ZERO_AXES, Mesh


@dataclass(frozen=True, order=True)
class BucketKey:
    """The properties of a gradient that decide how it travels; parameters with equal keys share a bucket.

    sum_axes: all-reduced over these (tensor-parallel axes: norms under sequence parallelism, replicated keys and
    values); before it is scattered, or after that if it has a unit.
    shard_axes: reduce-scattered over these (all-reduced without ZeRO).
    copies: devices of the stage that then hold the same elements; the gradient norm counts them once. 1 without one.
    decay: whether weight decay applies: to matrices (`Graph.matrices`), not to norms and biases. Of what is not
    learned, whether it is held in the dtype of the weights (`Graph.rounded`).
    unit: the block, or the one parameter outside of blocks, that travels by itself in every microbatch; "" for
    gradients that travel once a step.
    replica_axes: all-reduced over these once a step, last of all: what this rank then has of them, its shard.
    learned: whether there are gradients at all; parameters without them are never updated, and nothing is sent of them
    but the matrices that ZeRO-3 gathers: those have shard_axes and a unit, all others neither.
    orthogonal: whether Muon updates them, which has one moment (layout/orthogonal.py); else AdamW does.
    """

    sum_axes: tuple[str, ...]
    shard_axes: tuple[str, ...]
    copies: int
    decay: bool
    unit: str = ""
    replica_axes: tuple[str, ...] = ()
    learned: bool = True
    orthogonal: bool = False

    @property
    def moments(self) -> int:
        """How many moments the optimizer has of each element."""
        return 0 if not self.learned else 1 if self.orthogonal else 2


def bucket_key(program: Program, name: str, mesh: Mesh, tied: frozenset[str], zero: int) -> BucketKey:
    """The key of the bucket that holds one parameter. tied: parameters that live on two pipeline stages. zero: 0 to 3.

    ZeRO-2 and -3 leave norms and biases as they are under ZeRO-1: a collective for each would cost more than they hold.
    """
    tensor, is_matrix = program.graph.tensors[name], name in program.graph.matrices
    learned, shard = tensor.differentiable, sharing_axes(program, name)
    if not learned and not (zero == 3 and is_matrix):
        shard = ()
    copied = (axis for axis in program.copied_along(name) if learned and axis not in shard)
    copies = mesh.size(copied) * (2 if name in tied else 1)
    unit = block_of(name) if zero >= 2 and shard and is_matrix else ""
    sync = program.gradient_sync.get(name, ())
    replicas = tuple(axis for axis in sync if axis in REPLICA_AXES)
    others = tuple(axis for axis in sync if axis not in (*ZERO_AXES, *REPLICA_AXES))
    decay = is_matrix if learned else program.graph.rounded(tensor)
    return BucketKey(others, shard, copies, decay, unit, replicas, learned, tensor.orthogonal)


def sharing_axes(program: Program, view: str) -> tuple[str, ...]:
    """The axes along which ranks may share a parameter, each a part of it: of one that is learned those that sum its
    gradient, of another one those along which ranks have the same elements."""
    learned = program.tensor(view).differentiable
    axes = program.gradient_sync.get(view, ()) if learned else program.copied_along(view)
    return tuple(axis for axis in axes if axis in ZERO_AXES)


def tied_parameters(first: Program, last: Program) -> frozenset[str]:
    """Names of the learned parameters that the first and the last of several stages share; empty if there is one
    stage. What is not learned may be on any stages: nothing of it is summed."""
    names = [{tensor.name for tensor in program.graph.learned()} for program in (first, last)]
    return frozenset(names[0] & names[1]) if first is not last else frozenset()


def held_apart(first: Program, last: Program) -> str | None:
    """The first parameter that two stages share and do not hold, or sum the gradient of, in one way; None without."""

    def way(program: Program, name: str) -> tuple[State, tuple[str, ...]]:
        return program.states[name], program.gradient_sync.get(name, ())

    return next((name for name in sorted(tied_parameters(first, last)) if way(first, name) != way(last, name)), None)


def held_elements(programs: Sequence[Program]) -> list[dict[str, int]]:
    """For each program on one device, the elements of its parameters by name, but for those that an earlier one has."""
    known, found = set[str](), list[dict[str, int]]()
    for program in programs:
        found.append({name: count for name, count in parameter_elements(program).items() if name not in known})
        known.update(found[-1])
    return found


def bucket_parameters(
    programs: Sequence[Program], mesh: Mesh, tied: frozenset[str], zero: int
) -> dict[BucketKey, dict[str, int]]:
    """For each bucket on one device that runs these programs, in a fixed order, the elements of its parameters by name.
    What several of them share is there once.
    """
    found: dict[BucketKey, dict[str, int]] = {}
    for program, elements in zip(programs, held_elements(programs), strict=True):
        for name, count in elements.items():
            found.setdefault(bucket_key(program, name, mesh, tied, zero), {})[name] = count
    return {key: found[key] for key in sorted(found)}


def bucket_elements(programs: Sequence[Program], mesh: Mesh, tied: frozenset[str], zero: int) -> dict[BucketKey, int]:
    """Number of elements of each of `bucket_parameters`, padded to whole shards."""
    buckets = bucket_parameters(programs, mesh, tied, zero)
    return {key: padded_elements(key, sum(elements.values()), mesh, zero) for key, elements in buckets.items()}


def padded_elements(key: BucketKey, count: int, mesh: Mesh, zero: int) -> int:
    """`count` elements rounded up to a multiple of the ranks that share the bucket's optimizer state; unchanged without
    ZeRO.
    """
    shards = mesh.size(key.shard_axes) if zero else 1
    return ceil(count / shards) * shards


@dataclass(frozen=True)
class Run:
    """Consecutive elements of a parameter in a rank's shard of a bucket.

    name: of the parameter. start: their place in the shard. skipped: elements of the rank's own part of the parameter
    that lie before them. elements: how many there are.
    """

    name: str
    start: int
    skipped: int
    elements: int


def runs_of_shard(sizes: Mapping[str, int], begin: int, elements: int) -> Iterator[Run]:
    """Yields the runs of parameters in a shard; what lies between the last one and its end is padding.

    sizes: elements of each parameter of the bucket, in order. begin, elements: the shard's place in the bucket.
    """
    offset = -begin
    for name, size in sizes.items():
        start, stop = max(0, -offset), min(size, elements - offset)
        if start < stop:
            yield Run(name, offset + start, start, stop - start)
        offset += size


def units(program: Program, mesh: Mesh, tied: frozenset[str], zero: int) -> dict[BucketKey, tuple[str, ...]]:
    """The buckets of a program that travel by themselves, each with its parameters' names, in the order of
    first use.
    """
    held: dict[BucketKey, list[str]] = {}
    keys: dict[str, BucketKey] = {}
    for tensor in program.graph.parameters():
        key = bucket_key(program, tensor.name, mesh, tied, zero)
        if key.unit:
            held.setdefault(key, []).append(tensor.name)
            keys[tensor.name] = key
    read = (name for step in program.steps for one in operator_steps(step) for name in one.inputs if name in keys)
    return {keys[name]: tuple(held[keys[name]]) for name in read}


def read_in_backward(program: Program, names: Iterable[str], recompute: str) -> bool:
    """Whether backward reads the values of any of these parameters, so that ZeRO-3 gathers them again. recompute: name
    of the stage's set: what runs again is given all that it reads."""
    return not (_read_in_backward(program) | _run_again(program, recompute)).isdisjoint(names)


def _read_in_backward(program: Program) -> frozenset[str]:
    """The inputs that backward reads, kept with the program: of operators that some gradient comes to."""
    known: frozenset[str] | None = program.__dict__.get("_read_in_backward")
    if known is None:
        reached, found = set(program.outputs), set[str]()
        for step in reversed(program.steps):
            if isinstance(step, RedistributeStep):
                reached.update({step.source} if step.target in reached else ())
            for one in operator_steps(step):
                op, kind = one.operator, KINDS[one.operator.kind]
                if op.output in reached:
                    reached.update(view for i, view in enumerate(one.inputs) if kind.passes_gradient(op, i))
                    found.update(one.inputs[i] for i in kind.saved_inputs(op, program.graph))
            if isinstance(step, GatherEinsumStep) and step.gather.target in reached:
                reached.add(step.gather.source)
        known = program.__dict__["_read_in_backward"] = frozenset(found)
    return known


def _run_again(program: Program, recompute: str) -> set[str]:
    """The inputs of all steps in segments that run again."""
    repeated = (one for one in segments(program, recompute) if one.recomputed)
    steps = (step for one in repeated for step in program.steps[one.start : one.stop])
    return {view for step in steps for one in operator_steps(step) for view in one.inputs}
