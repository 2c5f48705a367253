"""Bytes that the backward of each step of a program works with, beside what forward kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from autoshard.graph.count import loop_sizes
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import OperatorKind, Sizes
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import recomputing
from autoshard.graph.redistribute import local_sizes

Count = Callable[[Operator, Graph, Sizes], float]
"""Bytes of an operator of a graph by the local sizes of its dims."""
LOSSES = ("cross_entropy", "linear_cross_entropy")
"""The kinds of operators that end a model."""


class AtSteps(NamedTuple):
    """Bytes at the backward of each step, beside what is kept or run again. working: what it works with, and gradients
    that wait for steps in front of it. tiles: `tile_bytes`, beside these.

    forward: what is there while the step runs forward, beside what it and those before it save; forward_tiles:
    `forward_tile_bytes`, beside these. gradients: that of its output, and those that wait: what is there where steps
    run again from it on, to the front.
    """

    working: Sequence[float]
    tiles: Sequence[float]
    forward: Sequence[float]
    forward_tiles: Sequence[float]
    gradients: Sequence[float]


def at_steps(program: Program) -> AtSteps:
    """Bytes at the backward of each step of a program."""
    tiles = [tile_bytes(program, step) for step in program.steps]
    waiting = _waiting_gradients_bytes(program)
    written = [sum(view_bytes(program, view) for view in _views(step)[1]) for step in program.steps]
    return AtSteps(
        [
            working_bytes(program, step) - tile + waits
            for step, tile, waits in zip(program.steps, tiles, waiting, strict=True)
        ],
        tiles,
        _forward_bytes(program),
        [forward_tile_bytes(program, step) for step in program.steps],
        [of_output + waits for of_output, waits in zip(written, waiting, strict=True)],
    )


def _forward_bytes(program: Program) -> list[float]:
    """Bytes, by step, that are there while it runs forward beside what it and those before it save: views that are
    written by then and read later, or never saved, what redistributions gather or copy on their way, and buffers inside
    operators."""
    pattern, buffers = recomputing(program)
    names, storages = [*buffers], program.storages
    saved = {names[place]: step for place, step in pattern.first_saved(0, len(program.steps)).items()}
    written: dict[str, int] = {}
    last_read: dict[str, int] = {}
    changes = [0.0] * (len(program.steps) + 1)
    for index, step in enumerate(program.steps):
        inputs, outputs = _views(step)
        last_read |= {storages.get(view, view): index for view in inputs}
        written |= {view: index for view in outputs if view not in storages}
        inside = _copied_bytes(program, step) + _inner_forward_bytes(program, step)
        if isinstance(step, GatherEinsumStep):
            inside += view_bytes(program, step.gather.target)
        changes[index] += inside
        changes[index + 1] -= inside
    for view, first in written.items():
        size, stop = view_bytes(program, view), saved.get(view, last_read.get(view, first) + 1)
        changes[first] += size
        changes[max(first, stop)] -= size
    return [*accumulate(changes[:-1])]


def _waiting_gradients_bytes(program: Program) -> list[float]:
    """Bytes of gradients, by step, that are there while its backward runs, for steps in front of it alone: those of
    views that are written in front, or come in, and are read behind."""
    written: dict[str, int] = {}
    last_read: dict[str, int] = {}
    for index, step in enumerate(program.steps):
        inputs, outputs = _views(step)
        last_read |= dict.fromkeys(inputs, index)
        written |= dict.fromkeys(outputs, index)
    changes = [0.0] * (len(program.steps) + 1)
    for view, last in last_read.items():
        first, size = written.get(view, -1), view_bytes(program, view)
        if last > first + 1 and not _is_mask(program, view):
            changes[first + 1] += size
            changes[last] -= size
    return [*accumulate(changes[:-1])]


def _views(step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The views that a step reads, and those that it writes."""
    if isinstance(step, RedistributeStep):
        return (step.source,), (step.target,)
    if isinstance(step, GatherEinsumStep):
        return (step.gather.source,), tuple(einsum.operator.output for einsum in step.einsums)
    return tuple(step.inputs), (step.operator.output,)


def working_bytes(program: Program, step: Step) -> float:
    """Bytes that backward of a step needs beside what forward kept: gradients of what it read and wrote, what it
    gathers again, buffers inside.

    Of its own the loss makes the gradient of probabilities, and plain attention that of its scores.
    """
    if isinstance(step, RedistributeStep):
        return view_bytes(program, step.source) + view_bytes(program, step.target) + _copied_bytes(program, step)
    if isinstance(step, GatherEinsumStep):
        written = sum(view_bytes(program, einsum.operator.output) for einsum in step.einsums)
        return 2 * view_bytes(program, step.gather.target) + written
    return operator_bytes(program, step)


def _copied_bytes(program: Program, step: Step) -> float:
    """Bytes of pieces that an all-to-all sends or has received, where they are no views: they lie one after the other
    in the tensor only if nothing but its first dim is split or gathered."""
    if not isinstance(step, RedistributeStep) or not any(one.forward == "all_to_all" for one in step.transitions):
        return 0.0
    dims = program.tensor(step.source).dims
    later = max(dims.index(dim) for one in step.transitions for dim in (one.source_dim, one.target_dim) if dim in dims)
    sizes = (local_sizes(program.graph, dims, program.states[one], program.axes) for one in (step.source, step.target))
    before = min(prod(size for dim, size in zip(dims[:later], of, strict=False) if dim != "batch") for of in sizes)
    return view_bytes(program, step.source) if before > 1 else 0.0


def operator_bytes(program: Program, step: OperatorStep) -> float:
    """Bytes that backward of one operator needs beside what forward kept: gradients of what it read and wrote and of
    what it saves beside, buffers inside, such as those of a ring."""
    op = step.operator
    own = KINDS[op.kind].own_gradients_bytes(op, program.graph, loop_sizes(program, step))
    inner = _inner_bytes(program, step) + tile_bytes(program, step)
    views = (view for view in (*step.inputs, op.output) if not _is_mask(program, view))
    return sum(view_bytes(program, view) for view in views) + own + inner


def _is_mask(program: Program, view: str) -> bool:
    """Whether a view was computed and has no gradient."""
    tensor = program.tensor(view)
    return tensor.role == "activation" and not tensor.differentiable


def _inside(program: Program, step: Step, count: Callable[[OperatorKind], Count]) -> float:
    """Bytes of buffers inside a step with one operator, by one of the counts of its kind; 0 for other steps."""
    if not isinstance(step, OperatorStep):
        return 0.0
    op = step.operator
    return count(KINDS[op.kind])(op, program.graph, loop_sizes(program, step))


def _inner_bytes(program: Program, step: Step) -> float:
    """Bytes of buffers inside the backward of a step with one operator; 0 for other steps."""
    return _inside(program, step, lambda kind: kind.inner_backward_bytes)


def tile_bytes(program: Program, step: Step) -> float:
    """Bytes of buffers inside the backward of a step with one operator that do not grow with the microbatch; 0 for
    other steps."""
    return _inside(program, step, lambda kind: kind.tile_bytes)


def _inner_forward_bytes(program: Program, step: Step) -> float:
    """Bytes of buffers inside the forward of a step with one operator; 0 for other steps."""
    return _inside(program, step, lambda kind: kind.inner_forward_bytes)


def forward_tile_bytes(program: Program, step: Step) -> float:
    """Bytes of buffers inside the forward of a step with one operator that do not grow with the microbatch; 0 for other
    steps."""
    return _inside(program, step, lambda kind: kind.forward_tile_bytes)


def view_bytes(program: Program, view: str) -> float:
    """Local bytes of a view; 0 for a parameter, which is charged where it lives, and for a single number."""
    return program.activation_bytes[view] if program.tensor(view).dims else 0.0
