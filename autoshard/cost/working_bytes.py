"""Bytes that the backward of each step of a program works with, beside what forward kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from autoshard.graph.count import loop_sizes
from autoshard.graph.gradients import gradient_storages, is_mask, passes_on, views
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import OperatorKind, Sizes
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import recomputing
from autoshard.graph.redistribute import local_sizes
from autoshard.graph.weight_gradients import Waiting, waiting_bytes, waiting_of_steps

Count = Callable[[Operator, Graph, Sizes], float]
"""Bytes of an operator of a graph by the local sizes of its dims."""
LOSSES = ("cross_entropy", "linear_cross_entropy")
"""The kinds of operators that end a model."""


class AtSteps(NamedTuple):
    """Bytes at the backward of each step, beside what is kept or run again. working: what it works with, and gradients
    that wait for steps in front of it. tiles: `tile_bytes`, beside these.

    forward: what is there while the step runs forward, beside what it and those before it save; forward_tiles:
    `forward_tile_bytes`, beside these. gradients: that of its output, and those that wait: what is there where steps
    run again from it on, to the front. put_off: beside `working`, what waits for gradients of weights of steps behind
    it where a schedule puts these off; waiting_bytes: what does when the backward of all is over. Neither counts what
    waits a second time where steps run again (`waiting_twice_bytes`).
    """

    working: Sequence[float]
    tiles: Sequence[float]
    forward: Sequence[float]
    forward_tiles: Sequence[float]
    gradients: Sequence[float]
    put_off: Sequence[float]
    waiting_bytes: float


def at_steps(program: Program) -> AtSteps:
    """Bytes at the backward of each step of a program."""
    tiles = [tile_bytes(program, step) for step in program.steps]
    whole = gradient_storages(program)
    gradients, waiting = _gradients(program, whole), waiting_of_steps(program, whole)
    return AtSteps(
        [
            working_bytes(program, step) - tile + of_step.waiting - of_step.again
            for step, tile, of_step in zip(program.steps, tiles, gradients, strict=True)
        ],
        tiles,
        _forward_bytes(program),
        [forward_tile_bytes(program, step) for step in program.steps],
        [sum(of_step.at_first.values()) for of_step in gradients],
        _put_off(program, gradients, waiting),
        waiting_bytes(waiting),
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
        inputs, outputs = views(step)
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


class _Gradients(NamedTuple):
    """Bytes of gradients at the backward of a step. waiting: those that are there for steps in front of it alone, of
    views that are written in front, or come in, and are read behind. again: of those that `working_bytes` counts, what
    is another one's or waits. at_first: that of its output, and those that wait, by the view whose gradient each is."""

    waiting: float
    again: float
    at_first: Mapping[str, float]


def _gradients(program: Program, whole: Mapping[str, str]) -> list[_Gradients]:
    """The gradients at each step, each storage once. whole: of `gradient_storages`.

    A view has a gradient that was handed on to it (`passes_on`) until another one is added to it.
    """
    readers: dict[str, list[int]] = {}
    written: dict[str, int] = {}
    for index, step in enumerate(program.steps):
        inputs, outputs = views(step)
        for view in inputs:
            readers.setdefault(view, []).append(index)
        written |= dict.fromkeys(outputs, index)
    waits: list[dict[str, float]] = [{} for _ in program.steps]
    found: list[_Gradients] = []
    for index, step in reversed([*enumerate(program.steps)]):
        inputs, outputs = views(step)
        outgoing = [whole.get(view, view) for view in outputs]
        sizes = {name: view_bytes(program, view) for name, view in zip(outgoing, outputs, strict=True)}
        at_first = waits[index] | sizes
        again = sum(view_bytes(program, view) for view in outputs) - sum(sizes.values())
        again += sum(size for name, size in sizes.items() if name in waits[index])
        for view in dict.fromkeys(inputs):
            if is_mask(program, view):
                continue
            size, places = view_bytes(program, view), readers[view]
            passed = outgoing[0] if passes_on(program, step, view) else ""
            if passed:
                again += size
            if index == places[-1]:
                alone = ([-1, *dict.fromkeys(places)])[-2]
                for place in range(written.get(view, -1) + 1, index):
                    waits[place][passed if passed and place >= alone else view] = size
        found.append(_Gradients(sum(waits[index].values()), again, at_first))
    return found[::-1]


def _put_off(program: Program, gradients: Sequence[_Gradients], waiting: Sequence[Waiting]) -> list[float]:
    """AtSteps.put_off. An input that a step in front saves as well waits from when it would be given back; a gradient
    that is there for other steps is counted with these."""
    pattern, buffers = recomputing(program)
    names, saved = [*buffers], pattern.first_saved(0, len(waiting))
    first = {names[place]: step for place, step in saved.items()}
    inputs = {view: (size, index) for index, of_step in enumerate(waiting) for view, size in of_step.inputs.items()}
    found = [0.0] * len(waiting)
    for view, (size, index) in inputs.items():
        for before in range(first.get(view, index)):
            found[before] += size
    behind: dict[str, float] = {}
    for index in reversed(range(len(waiting))):
        found[index] += sum(size for name, size in behind.items() if name not in gradients[index].at_first)
        behind |= waiting[index].gradients
    return found


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
    views = (view for view in (*step.inputs, op.output) if not is_mask(program, view))
    return sum(view_bytes(program, view) for view in views) + own + inner


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


def given_bytes(program: Program) -> float:
    """Local bytes of what a program is given by others, and of its gradients, when its backward is over: what came from
    another stage is there to the end."""
    return 2 * sum(view_bytes(program, one.name) for one in program.graph.inputs() if one.differentiable)


def view_bytes(program: Program, view: str) -> float:
    """Local bytes of a view; 0 for a parameter, which is charged where it lives, and for a single number."""
    return program.activation_bytes[view] if program.tensor(view).dims else 0.0
