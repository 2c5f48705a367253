"""Runs a program on every simulated rank, forward and backward, and counts the collectives that it executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoshard.graph.count import Collective
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep
from autoshard.graph.redistribute import Transition
from autoshard.graph.states import COLLECTIVES, PARTIAL, REPLICATED, State
from tests.spmd.collectives import Array, Axes, all_reduce, move
from tests.spmd.kernels import run
from tests.spmd.place import Backward, Place


@dataclass
class Execution:
    """values: of every tensor and view; gradients: of those that have one, a parameter's after its deferred sum."""

    program: Program
    values: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    collectives: Counter[Collective] = field(default_factory=Counter)

    def whole_value(self, tensor: str) -> Array:
        return whole(self.values[tensor], self.program, tensor, is_gradient=False)

    def whole_gradient(self, tensor: str) -> Array:
        return whole(self.gradients[tensor], self.program, tensor, is_gradient=True)


def execute(program: Program, given: Mapping[str, Array], output_gradients: Mapping[str, Array]) -> Execution:
    """One microbatch.

    given: whole parameters and inputs. output_gradients: of the program's output tensors, whole.
    """
    execution = Execution(program)
    for name, value in given.items():
        execution.values[name] = pieces(value, program.graph.tensors[name].dims, program.states[name], program.axes)
    tape = [(step, _forward(execution, step)) for step in program.steps]
    for view in program.outputs:
        tensor = program.tensor(view)
        seed = gradient_pieces(output_gradients[tensor.name], tensor.dims, program.states[view], program.axes)
        _accumulate(execution, view, seed)
    for step, backwards in reversed(tape):
        _backward(execution, step, backwards)
    _sum_deferred(execution)
    return execution


def _forward(execution: Execution, step: object) -> list[Backward]:
    program, values = execution.program, execution.values
    if isinstance(step, RedistributeStep):
        values[step.target] = _redistribute(execution, step, values[step.source], "forward")
        return []
    if isinstance(step, GatherEinsumStep):
        values[step.gather.target] = _redistribute(execution, step.gather, values[step.gather.source], "forward")
    found = []
    for one in _operators(step):
        forward, backward_too = (_reporter(execution, phase) for phase in ("forward", "backward"))
        place = Place(one, program.graph, program.axes, forward, backward_too)
        values[one.operator.output], backward = run(place, tuple(values[view] for view in one.inputs))
        found.append(backward)
    return found


def _backward(execution: Execution, step: object, backwards: list[Backward]) -> None:
    """As autograd: what has no gradient passes none on, and then moves nothing."""
    for one, backward in reversed(list(zip(_operators(step), backwards, strict=True))):
        gradient = execution.gradients.get(one.operator.output)
        if gradient is not None:
            for view, by_input in zip(one.inputs, backward(gradient), strict=True):
                if by_input is not None and execution.program.tensor(view).differentiable:
                    _accumulate(execution, view, by_input)
    moved = step.gather if isinstance(step, GatherEinsumStep) else step
    if not isinstance(moved, RedistributeStep):
        return
    if isinstance(step, GatherEinsumStep):  # only the local piece was kept
        _redistribute(execution, moved, execution.values[moved.source], "backward again")
    gradient = execution.gradients.get(moved.target)
    if gradient is not None:
        _accumulate(execution, moved.source, _redistribute(execution, moved, gradient, "backward"))


def _operators(step: object) -> tuple[OperatorStep, ...]:
    if isinstance(step, GatherEinsumStep):
        return step.einsums
    return (step,) if isinstance(step, OperatorStep) else ()


def _redistribute(execution: Execution, step: RedistributeStep, x: Array, phase: str) -> Array:
    is_backward = phase == "backward"
    for transition in reversed(step.transitions) if is_backward else step.transitions:
        before, x = x, _half(execution.program, step, transition, x, is_backward)
        kind = transition.backward if is_backward else transition.forward
        if kind in COLLECTIVES:
            ranks = int(np.prod(tuple(execution.program.axes.values())))
            elements = max(before.size, x.size) // ranks
            size = elements * execution.program.tensor(step.source).element_bytes
            _reporter(execution, phase.split()[0])(kind, transition.axes, size)
    return x


def _half(program: Program, step: RedistributeStep, transition: Transition, x: Array, is_backward: bool) -> Array:
    dims = program.tensor(step.source).dims
    source = None if transition.source_dim is None else dims.index(transition.source_dim)
    target = None if transition.target_dim is None else dims.index(transition.target_dim)
    if is_backward:
        return move(transition.backward, x, program.axes, transition.axes, target, source)
    return move(transition.forward, x, program.axes, transition.axes, source, target)


def _reporter(execution: Execution, phase: str) -> Callable[[str, tuple[str, ...], int], None]:
    def report(kind: str, over: tuple[str, ...], size: int) -> None:
        execution.collectives[Collective(phase, kind, over, size)] += 1

    return report


def _accumulate(execution: Execution, view: str, gradient: Array) -> None:
    known = execution.gradients.get(view)
    assert gradient.shape == execution.values[view].shape, (view, gradient.shape, execution.values[view].shape)
    execution.gradients[view] = gradient if known is None else known + gradient


def _sum_deferred(execution: Execution) -> None:
    program = execution.program
    for name, over in program.gradient_sync.items():
        gradient = execution.gradients[name]
        execution.gradients[name] = all_reduce(gradient, program.axes, over)
        size = gradient.nbytes // int(np.prod(tuple(program.axes.values())))
        _reporter(execution, "sync")("all_reduce", over, size)


def pieces(x: Array, dims: tuple[str, ...], state: State, axes: Axes) -> Array:
    """A whole value as its ranks hold it; outer axes hold the larger pieces. No entry may be partial."""
    mesh = len(axes)
    held = np.broadcast_to(x, (*(1,) * mesh, *x.shape))
    for dim, name in enumerate(dims):
        along = _along(axes, state, name)
        if along:
            held = _cut(held, mesh + dim, along)
    return np.broadcast_to(held, (*axes.values(), *held.shape[mesh:]))


def _along(axes: Axes, state: State, entry: str) -> list[tuple[int, int]]:
    return [(at, size) for at, size in enumerate(axes.values()) if state[at] == entry]


def _cut(x: Array, dim: int, along: list[tuple[int, int]]) -> Array:
    """Cut a dim of a whole array over the mesh positions `along`, where it has size 1."""
    sizes = [size for _, size in along]
    length = x.shape[dim] // int(np.prod(sizes))
    unfolded = x.reshape(*x.shape[:dim], *sizes, length, *x.shape[dim + 1 :])
    for offset, (at, _) in enumerate(along):
        unfolded = np.swapaxes(unfolded, at, dim + offset)
    return unfolded.reshape(*unfolded.shape[:dim], length, *x.shape[dim + 1 :])


def gradient_pieces(x: Array, dims: tuple[str, ...], state: State, axes: Axes) -> Array:
    """A whole gradient as its ranks hold it: where the value is `R` it is a partial sum, of unequal parts."""
    held = pieces(x, dims, state, axes)
    for at, size in enumerate(axes.values()):
        if state[at] == REPLICATED:
            shares = np.arange(1.0, size + 1) * 2 / (size * (size + 1))
            held = held * shares.reshape([-1 if i == at else 1 for i in range(held.ndim)])
    return held


def whole(x: Array, program: Program, view: str, is_gradient: bool) -> Array:
    """The whole array from its pieces. Raises AssertionError where ranks that must agree do not."""
    state, axes = program.states[view], program.axes
    tensor = program.tensor(view)
    summed = REPLICATED if is_gradient else PARTIAL
    for at, entry in enumerate(state):
        if entry == summed:
            x = x.sum(at, keepdims=True)
        elif entry not in tensor.dims:
            first = x.take([0], at)
            assert np.allclose(x, first, rtol=1e-9, atol=1e-12), f"{view} in {state} differs along {list(axes)[at]}"
            x = first
    for dim, name in enumerate(tensor.dims):
        along = _along(axes, state, name)
        if along:
            x = _join(x, len(axes), dim, [at for at, _ in along])
    return x.reshape(x.shape[len(axes) :])


def _join(x: Array, mesh: int, dim: int, along: list[int]) -> Array:
    """The inverse of _cut: the mesh positions `along` become size 1."""
    moved = np.moveaxis(x, along, range(mesh - len(along) + dim, mesh + dim))
    shape = list(x.shape)
    for at in along:
        shape[mesh + dim] *= shape[at]
        shape[at] = 1
    return moved.reshape(shape)
