"""FLOPs, bytes, saved activations and collectives of a program, on one rank, for one microbatch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.graph.ir import Graph
from autoshard.graph.operators import KINDS, Internal
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.redistribute import Transition
from autoshard.graph.states import COLLECTIVES


@dataclass(frozen=True, order=True)
class Collective:
    """phase: 'forward', 'recompute', 'backward' or 'sync' (once a step). bytes: larger of input and output buffer."""

    phase: str
    kind: str
    axes: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class OperatorWork:
    """Forward work of one operator on one rank. matmul is (M, N, K) for matrix products."""

    name: str
    kind: str
    module: str
    flops: float
    bytes_moved: float
    matmul: tuple[float, float, float] | None
    backward_flops_ratio: float


def operator_steps(step: Step) -> tuple[OperatorStep, ...]:
    """The operators that run in a step: one, several that share a gathered input, or none in a redistribution."""
    if isinstance(step, OperatorStep):
        return (step,)
    return step.einsums if isinstance(step, GatherEinsumStep) else ()


def loop_sizes(program: Program, step: OperatorStep) -> dict[str, float]:
    """Local size of each dim of the graph while this operator runs."""
    sizes: dict[str, float] = dict(program.graph.sizes)
    for axis, size in program.axes.items():
        dim = step.choice.get(axis)
        if dim in step.operator.loop_dims:
            assert dim is not None
            sizes[dim] /= size
    return sizes


def operator_work(program: Program, step: OperatorStep) -> OperatorWork:
    """What one rank computes and moves when the operator runs forward once, on its local pieces.

    bytes_moved: inputs read and output written once; of an embedding the rows, not the table.
    """
    op, graph = step.operator, program.graph
    kind, sizes = KINDS[op.kind], loop_sizes(program, step)
    moved = sum(program.local_bytes[view] for view in step.inputs)
    if op.kind == "embedding":  # reads the rows it looks up, not the table
        moved = program.local_bytes[op.output]
    moved += program.local_bytes[op.output]
    return OperatorWork(
        op.name,
        op.kind,
        op.module,
        kind.flops(op, graph, sizes),
        float(moved),
        kind.matmul_shape(op, graph, sizes),
        kind.backward_flops_ratio(op),
    )


def saved_activations(program: Program, step: Step) -> dict[str, float]:
    """Buffers, by name, that autograd keeps for this step's backward. Two steps that keep one buffer name it alike."""
    kept: dict[str, float] = {}
    for one in operator_steps(step):
        op = one.operator
        kind = KINDS[op.kind]
        views = [one.inputs[index] for index in kind.saved_inputs(op, program.graph)]
        if isinstance(step, GatherEinsumStep):
            views = [step.gather.source if view == step.gather.target else view for view in views]
        if kind.saves_output(op):
            views.append(op.output)
        for view in views:
            tensor = program.tensor(view)
            if tensor.role != "parameter" and tensor.differentiable:
                kept[view] = float(program.local_bytes[view])
        for extra in kind.extra_saved(op, program.graph, loop_sizes(program, one)):
            kept[f"{op.name}:{extra.name}"] = extra.bytes
    return kept


def forward_collectives(program: Program, step: Step) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(kind, axes, bytes) that running this step forward issues, in order."""
    if isinstance(step, RedistributeStep):
        yield from _moving(step.transitions, forward=True)
        return
    if isinstance(step, GatherEinsumStep):
        yield from _moving(step.gather.transitions, forward=True)
    for one in operator_steps(step):
        kind, sizes = KINDS[one.operator.kind], loop_sizes(program, one)
        yield from _inside(program, one, kind.internal_collectives(one.operator, program.graph, sizes))


def backward_collectives(program: Program, step: Step) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(kind, axes, bytes) that this step's backward issues."""
    if isinstance(step, RedistributeStep):
        if program.tensor(step.source).differentiable and step.target not in program.without_gradient:
            yield from _moving(tuple(reversed(step.transitions)), forward=False)
    elif isinstance(step, GatherEinsumStep):
        yield from _moving(step.gather.transitions, forward=True)
        yield from _moving(step.gather.transitions, forward=False)
    for one in operator_steps(step):
        kind, sizes = KINDS[one.operator.kind], loop_sizes(program, one)
        yield from _inside(program, one, kind.internal_backward_collectives(one.operator, program.graph, sizes))


def _inside(
    program: Program, step: OperatorStep, issued: tuple[Internal, ...]
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    for kind, dim, size in issued:
        axes = tuple(axis for axis in program.axes if step.choice.get(axis) == dim)
        if axes:
            yield kind, axes, int(size)


def _moving(transitions: tuple[Transition, ...], forward: bool) -> Iterator[tuple[str, tuple[str, ...], int]]:
    for transition in transitions:
        kind = transition.forward if forward else transition.backward
        if kind in COLLECTIVES:
            yield kind, transition.axes, transition.payload_bytes


def parameter_elements(program: Program) -> dict[str, int]:
    """Local elements of each parameter on one rank."""
    return {
        tensor.name: program.local_bytes[tensor.name] // tensor.element_bytes for tensor in program.graph.parameters()
    }


def total_flops(graph: Graph) -> float:
    """Forward FLOPs of the whole graph, unsharded, matrix products and attention only (what MFU counts)."""
    work = [op for op in graph.operators if op.kind in ("einsum", "attention")]
    sizes: dict[str, float] = dict(graph.sizes)
    return sum(KINDS[op.kind].flops(op, graph, sizes) for op in work)
