"""A block's backward gives activations back while gradients of weights come: when which are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoshard.graph.count import operator_steps, parameter_elements, saved_activations
from autoshard.graph.partition import Program, Step


class Moment(NamedTuple):
    """The activations that are gone and the gradients that have come at a moment of a block's backward.

    given_back: bytes of activations that are not there, of all that was kept or is run again and the most that one step
    works with besides. made: matrices whose gradients are there, elements by the axes over which they are summed.
    """

    given_back: float
    made: Mapping[tuple[str, ...], int]


NO_MOMENT = Moment(0.0, {})


class Moments(NamedTuple):
    """The moments of a block's backward at which most may be held.

    early: one step works with most; nothing has been given back. late: the last gradient of experts or of an MLP.
    after: most activations after that. end: the last gradient of all. before: most activations up to the late moment;
    of this one and `after` one has given nothing back. weights: the operator whose weights have most elements has their
    gradients, which are all that is made if each operator's are added to their sum at once; those of this one alone.
    """

    early: Moment = NO_MOMENT
    late: Moment = NO_MOMENT
    after: Moment = NO_MOMENT
    end: Moment = NO_MOMENT
    before: Moment = NO_MOMENT
    weights: Moment = NO_MOMENT


def moments(
    program: Program, working: Sequence[float], needed: Sequence[float], given_back: Sequence[float]
) -> Moments:
    """The moments of one block's backward, whatever the recompute set: what runs again is given back at the same steps
    as what was kept.

    working: bytes that backward of each step works with. needed: the same as a part of a stage counts it, for some
    steps without what was given back before; the largest is its `working_bytes`. given_back: as `given_back_bytes` has
    them.
    """
    read = [_matrices(program, index) for index in range(len(program.steps))]
    late = _first_of_mlp(program, read)
    held = [need - gone for need, gone in zip(working, given_back, strict=True)]
    most, elements = max(needed, default=0.0), parameter_elements(program)
    weights = _of_largest_operator(program, held, most, elements)
    if late is None:
        return Moments(weights=weights)
    first = max(range(len(needed)), key=needed.__getitem__)
    after = max(held[:late], default=held[late])
    before = max(range(late, len(needed)), key=needed.__getitem__)

    def made(since: int) -> dict[tuple[str, ...], int]:
        return _by_axes(program, {name for names in read[since:] for name in names}, elements)

    end = next(index for index, names in enumerate(read) if names)
    return Moments(
        Moment(0.0, made(first)),
        Moment(most - held[late], made(late)),
        Moment(most - after, made(0)),
        Moment(most - held[end], made(0)),
        Moment(most - needed[before] if after == most else 0.0, made(before)),
        weights,
    )


def _of_largest_operator(program: Program, held: Sequence[float], most: float, elements: Mapping[str, int]) -> Moment:
    """Moments.weights. held: bytes at each step, less what was given back before. most: bytes at the fullest one."""
    learned = {tensor.name for tensor in program.graph.learned()}
    by_step = [{view for one in operator_steps(step) for view in one.inputs} & learned for step in program.steps]
    counts = [sum(elements[name] for name in names) for names in by_step]
    place = max(range(len(counts)), key=lambda step: (counts[step], held[step]), default=None)
    return NO_MOMENT if place is None else Moment(most - held[place], _by_axes(program, by_step[place], elements))


def _by_axes(program: Program, names: Iterable[str], elements: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    """Elements of some parameters, by the axes over which their gradients are summed."""
    counts: dict[tuple[str, ...], int] = {}
    for name in names:
        axes = program.gradient_sync.get(name, ())
        counts[axes] = counts.get(axes, 0) + elements[name]
    return counts


def _matrices(program: Program, index: int) -> tuple[str, ...]:
    names = (view for step in operator_steps(program.steps[index]) for view in step.inputs)
    return tuple(name for name in names if name in program.graph.matrices and program.tensor(name).differentiable)


def _first_of_mlp(program: Program, read: Sequence[tuple[str, ...]]) -> int | None:
    """The first step that reads an expert's weight, but not the router's; without experts, one of the MLP."""
    dims = {name: program.tensor(name).dims for names in read for name in names}
    experts = [
        i for i, names in enumerate(read) if any("expert" in dims[name] and len(dims[name]) > 2 for name in names)
    ]
    mlp = [i for i, names in enumerate(read) if names and operator_steps(program.steps[i])[0].operator.module == "mlp"]
    return next(iter(experts or mlp), None)


def given_back_bytes(program: Program, by_module: bool = False) -> list[float]:
    """Bytes that are given back before the backward of each step. by_module: those that steps of its own module saved,
    which are kept or run again as one; none for a step without operators."""
    freed = [0.0] * len(program.steps)
    for index, size in first_saved(program).values():
        freed[index] += size
    given_back, gone = [0.0] * len(freed), defaultdict[str | None, float](float)
    for index in reversed(range(len(freed))):
        module = _module(program.steps[index]) if by_module else ""
        given_back[index] = 0.0 if module is None else gone[module]
        gone[module] += freed[index]
    return given_back


def _module(step: Step) -> str | None:
    return next((one.operator.module for one in operator_steps(step)), None)


def first_saved(program: Program) -> dict[str, tuple[int, float]]:
    """Name -> (first step that saved it, bytes) of each buffer, which is given back with that step's backward."""
    owned: dict[str, tuple[int, float]] = {}
    for index, step in enumerate(program.steps):
        for name, size in saved_activations(program, step).items():
            owned.setdefault(name, (index, size))
    return owned
