"""Find the weight gradients that a backward may leave for later, and the bytes that wait with them.

They are those of projections, x[rows, contracted] w[columns, contracted]^T with a parameter w: dw = dy^T x needs only
x and dy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoshard.graph.count import operator_steps
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, Step, learns_projection


def projections(program: Program) -> tuple[OperatorStep, ...]:
    """The projections of a program, in its order, with those behind a shared gather."""
    return tuple(one for step in program.steps for one in _learning(program, step))


class Waiting(NamedTuple):
    """Bytes by name of what waits for the gradients of a step's weights: the inputs of its projections, and the
    gradients of their outputs, each by the view whose gradient it is (`gradient_storages`)."""

    inputs: Mapping[str, float]
    gradients: Mapping[str, float]


def waiting_bytes(steps: Sequence[Waiting]) -> float:
    """Bytes that one microbatch keeps on one rank between its `I` and its `W`: of all `waiting_of_steps`."""
    inputs = {view: size for of_step in steps for view, size in of_step.inputs.items()}
    gradients = {view: size for of_step in steps for view, size in of_step.gradients.items()}
    return sum(inputs.values()) + sum(gradients.values())


def waiting_of_steps(program: Program, whole: Mapping[str, str]) -> list[Waiting]:
    """Step by step, what waits for the gradients of its weights. whole: of `gradient_storages`."""
    found = []
    for step in program.steps:
        outputs = [one.operator.output for one in _learning(program, step)]
        gradients = {whole.get(output, output): float(program.local_bytes[output]) for output in outputs}
        found.append(Waiting(waiting_inputs(program, step), gradients))
    return found


def waiting_inputs(program: Program, step: Step) -> dict[str, float]:
    """Waiting.inputs of a step.

    An input that several projections read waits once; one that is gathered waits ungathered, and is gathered again in
    `W`.
    """
    views = [one.inputs[0] for one in _learning(program, step)]
    if isinstance(step, GatherEinsumStep):
        views = [step.gather.source if view == step.gather.target else view for view in views]
    return {program.storages.get(view, view): float(program.local_bytes[view]) for view in views}


def _learning(program: Program, step: Step) -> list[OperatorStep]:
    """The projections of a step."""
    return [one for one in operator_steps(step) if learns_projection(program.graph, one.operator)]
