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
    """Bytes that one microbatch keeps on one rank between its `I` and its `W`.

    These are the inputs of the projections and the gradients of their outputs. An input that several projections read
    waits once; one that is gathered waits ungathered, and is gathered again in `W`.
    """
    waiting: dict[str, float] = {}
    sources = {step.gather.target: step.gather.source for step in program.steps if isinstance(step, GatherEinsumStep)}
    for projection in projections(program):
        for view in (sources.get(projection.inputs[0], projection.inputs[0]), projection.operator.output):
            waiting[view] = float(program.local_bytes[view])
    return sum(waiting.values())
