"""Find the weight gradients that a backward may leave for later, and the bytes that wait with them.

They are those of projections, x[rows, contracted] w[columns, contracted]^T with a parameter w: dw = dy^T x needs only
x and dy.
"""

from __future__ import annotations

from autoshard.graph.count import operator_steps
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, is_projection


def projections(program: Program) -> tuple[OperatorStep, ...]:
    """The projections of a program, in its order, with those behind a shared gather."""
    steps = (one for step in program.steps for one in operator_steps(step))
    return tuple(one for one in steps if is_projection(program.graph, one.operator))


def waiting_bytes(program: Program) -> float:
    """Bytes that one microbatch keeps on one rank between its `I` and its `W`: of all `waiting_views`."""
    return sum({view: size for of_step in waiting_views(program) for view, size in of_step.items()}.values())


def waiting_views(program: Program) -> list[dict[str, float]]:
    """By step, name -> bytes of what waits for the gradients of its weights: the inputs of its projections and the
    gradients of their outputs.

    An input that several projections read waits once; one that is gathered waits ungathered, and is gathered again in
    `W`.
    """
    sources = {step.gather.target: step.gather.source for step in program.steps if isinstance(step, GatherEinsumStep)}
    storages = program.storages
    return [
        {
            storages.get(view, view): float(program.local_bytes[view])
            for one in operator_steps(step)
            if is_projection(program.graph, one.operator)
            for view in (sources.get(one.inputs[0], one.inputs[0]), one.operator.output)
        }
        for step in program.steps
    ]
