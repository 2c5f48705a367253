"""Count what a program costs one rank for one microbatch: FLOPs, bytes, saved activations and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from autoshard.graph.compressed_kinds import ATTENTION_KINDS
from autoshard.graph.ir import OPERAND_BYTES, OPERAND_MULTIPLE, Graph, Operator
from autoshard.graph.loss_kinds import num_chunks
from autoshard.graph.operator_kind import Internal
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recurrent_kinds import WITH_STATES
from autoshard.graph.redistribute import Transition
from autoshard.graph.states import COLLECTIVES

QUANTIZED = ":quantized"
"""Ends the name of a quantised copy of a tensor."""
StepT = TypeVar("StepT", OperatorStep, Step)
Found = TypeVar("Found")


@dataclass(frozen=True, order=True)
class Collective:
    """A collective that a rank takes part in.

    phase: 'forward', 'recompute', 'backward' or 'sync' (once a step). kind: such as 'all_gather'. axes: mesh axes.
    bytes: the larger of input and output buffer on one rank.
    """

    phase: str
    kind: str
    axes: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class OperatorWork:
    """Forward work of one operator on one rank for one microbatch.

    bytes_moved: memory traffic. matmul: (M, N, K) for matrix products, else None.
    backward_flops_ratio: FLOPs of the backward over those of the forward.
    """

    name: str
    kind: str
    flops: float
    bytes_moved: float
    matmul: tuple[float, float, float] | None
    backward_flops_ratio: float


def once_a_step(
    count: Callable[[Program, StepT], Found],
) -> Callable[[Program, StepT], Found]:
    """The function of a program and a step, which keeps its results with the program: many counts ask for them."""
    name = f"_{count.__name__}"

    @wraps(count)
    def known(program: Program, step: StepT) -> Found:
        results: dict[int, tuple[StepT, Found]] = program.__dict__.setdefault(name, {})
        found = results.get(id(step))
        if found is None or found[0] is not step:  # an id that another step had
            found = results[id(step)] = step, count(program, step)
        return found[1]

    return known


def operator_steps(step: Step) -> tuple[OperatorStep, ...]:
    """The operators that run in a step: one, several that share a gathered input, or none in a redistribution."""
    if isinstance(step, OperatorStep):
        return (step,)
    return step.einsums if isinstance(step, GatherEinsumStep) else ()


@once_a_step
def loop_sizes(program: Program, step: OperatorStep) -> Mapping[str, float]:
    """Local size of each dim of the graph on one rank while the operator of this step runs."""
    sizes: dict[str, float] = dict(program.graph.sizes)
    for axis, size in program.axes.items():
        dim = step.choice.get(axis)
        if dim in step.operator.loop_dims:
            assert dim is not None
            sizes[dim] /= size
    return sizes


def operand_bytes(program: Program, step: OperatorStep) -> float | None:
    """Bytes of one element of the quantised operands of a rank's product; None where its operands are as they were."""
    attributes = step.operator.attributes
    size, multiple = attributes.get(OPERAND_BYTES), attributes.get(OPERAND_MULTIPLE)
    if not isinstance(size, (int, float)) or not isinstance(multiple, int):
        return None
    return size if divides(step.operator, program.graph, loop_sizes(program, step), multiple) else None


def divides(op: Operator, graph: Graph, sizes: Mapping[str, float], multiple: int) -> bool:
    """Whether a product's inputs and outputs are multiples of so many elements. sizes: of the graph's dims."""
    shape = KINDS[op.kind].matmul_shape(op, graph, sizes)
    assert shape is not None, op.name
    _, outputs, inputs = shape
    return not (outputs % multiple or inputs % multiple)


def operator_work(program: Program, step: OperatorStep) -> OperatorWork:
    """The work of one rank when the operator of this step runs forward once, on local tensors.

    Bytes moved are inputs read and output written once, but for weights of a loss in chunks, which each chunk reads; an
    embedding and a slice read what they give, no more.
    """
    op, graph = step.operator, program.graph
    kind, sizes = KINDS[op.kind], loop_sizes(program, step)
    moved = sum(times_read(program, step, view) * program.local_bytes[view] for view in step.inputs)
    if op.kind in ("embedding", "slice"):
        moved = program.local_bytes[op.output]
    moved += program.local_bytes[op.output]
    return OperatorWork(
        op.name,
        op.kind,
        kind.flops(op, graph, sizes),
        float(moved),
        kind.matmul_shape(op, graph, sizes),
        kind.backward_flops_ratio(op, graph),
    )


def times_read(program: Program, step: OperatorStep, view: str) -> int:
    """How often the operator of a step reads an input."""
    return num_chunks(step.operator) if program.tensor(view).role == "parameter" else 1


@once_a_step
def saved_activations(program: Program, step: Step) -> Mapping[str, float]:
    """Name -> bytes of the buffers that autograd keeps for this step's backward, on one rank.

    Two steps that keep the same buffer give it the same name. What backward gathers again is kept as it is gathered.
    """
    as_it_was = isinstance(step, GatherEinsumStep) and not program.gathers_quantized
    kept: dict[str, float] = {}
    for operator_step in operator_steps(step):
        op = operator_step.operator
        kind = KINDS[op.kind]
        views = [operator_step.inputs[index] for index in kind.saved_inputs(op, program.graph)]
        if isinstance(step, GatherEinsumStep):
            views = [step.gather.source if view == step.gather.target else view for view in views]
        if kind.saves_output(op):
            views.append(op.output)
        quantized = None if as_it_was else operand_bytes(program, operator_step)
        for view in views:
            tensor = program.tensor(view)
            if tensor.role != "parameter" and tensor.differentiable and tensor.counted:
                if quantized is not None:  # the copy that the gradient of the weight reads, instead
                    kept[view + QUANTIZED] = program.local_bytes[view] / tensor.element_bytes * quantized
                else:
                    kept[view] = float(program.local_bytes[view])
        for extra in kind.extra_saved(op, program.graph, loop_sizes(program, operator_step)):
            kept[f"{op.name}:{extra.name}"] = extra.bytes
    return kept


def forward_collectives(program: Program, step: Step) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(kind, axes, bytes) of each collective that this step's forward issues, in order. bytes: as in `Collective`."""
    if isinstance(step, RedistributeStep):
        yield from _moving(step.transitions, forward=True)
        return
    if isinstance(step, GatherEinsumStep):
        yield from _moving(step.gather.transitions, forward=True)
    for operator_step in operator_steps(step):
        kind, sizes = KINDS[operator_step.operator.kind], loop_sizes(program, operator_step)
        yield from _inside(
            program, operator_step, kind.internal_collectives(operator_step.operator, program.graph, sizes)
        )


def backward_collectives(program: Program, step: Step) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(kind, axes, bytes) of each collective that this step's backward issues. bytes: as in `Collective`."""
    if isinstance(step, RedistributeStep):
        if program.tensor(step.source).differentiable and step.target not in program.without_gradient:
            yield from _moving(tuple(reversed(step.transitions)), forward=False)
    elif isinstance(step, GatherEinsumStep):
        yield from _moving(step.gather.transitions, forward=True)
        yield from _moving(step.gather.transitions, forward=False)
    for operator_step in operator_steps(step):
        kind, sizes = KINDS[operator_step.operator.kind], loop_sizes(program, operator_step)
        yield from _inside(
            program, operator_step, kind.internal_backward_collectives(operator_step.operator, program.graph, sizes)
        )


def _inside(
    program: Program, step: OperatorStep, issued: tuple[Internal, ...]
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    known: dict[Internal, tuple[str, tuple[str, ...], int]] = {}  # a ring has as many alike as ranks
    for one in dict.fromkeys(issued):
        kind, dim, size = one
        known[one] = kind, tuple(axis for axis in program.axes if step.choice.get(axis) == dim), int(size)
    for one in issued:
        if known[one][1]:
            yield known[one]


def _moving(transitions: tuple[Transition, ...], forward: bool) -> Iterator[tuple[str, tuple[str, ...], int]]:
    for transition in transitions:
        kind = transition.forward if forward else transition.backward
        if kind in COLLECTIVES:
            yield kind, transition.axes, transition.payload_bytes


def parameter_elements(program: Program) -> dict[str, int]:
    """Parameter name -> number of elements that one rank holds."""
    return {
        tensor.name: program.local_bytes[tensor.name] // tensor.element_bytes for tensor in program.graph.parameters()
    }


def total_flops(graph: Graph, **sizes: float) -> float:
    """Forward FLOPs of the whole unsharded graph: matrix products, attention and what stands in its place (what MFU
    counts); what chooses the keys of sparse attention is left out, and that attention counts as that of all keys.
    sizes: of dims that count with another size than the graph's."""
    return sum(flops for _, flops in _counted(graph, sizes))


def step_flops(graph: Graph, **sizes: float) -> float:
    """FLOPs of the whole unsharded graph, counted as `total_flops` does, forward and backward: twice the forward, or
    once where a product's weight is not learned."""
    return sum(flops * (2 if graph.is_frozen(op) else 3) for op, flops in _counted(graph, sizes))


def _counted(graph: Graph, sizes: Mapping[str, float]) -> Iterator[tuple[Operator, float]]:
    """(an operator that MFU counts, its forward FLOPs). sizes: of dims that count with another size."""
    counted_sizes: dict[str, float] = {**graph.sizes, **sizes}
    for op in graph.operators:
        if op.kind in ("einsum", "linear_cross_entropy", *ATTENTION_KINDS, *WITH_STATES):
            yield op, KINDS[op.kind].flops(op, graph, counted_sizes)
