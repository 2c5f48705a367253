"""Which gradients of weights a backward may leave for later, and what waits with them.

Those of projections, x[rows, contracted] w[columns, contracted]^T with a parameter w: dw = dy^T x needs only x and dy.
"""

from __future__ import annotations

from autoshard.graph.count import operator_steps
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, is_projection


def projections(program: Program) -> tuple[OperatorStep, ...]:
    """In the program's order; those behind a shared gather too."""
    found = (one for step in program.steps for one in operator_steps(step))
    return tuple(one for one in found if is_projection(program.graph, one.operator))


def waiting_bytes(program: Program) -> float:
    """Of one microbatch on one rank between its `I` and its `W`: inputs of the projections, gradients of their outputs.

    An input that several read waits once; one that is gathered waits ungathered, and is gathered in `W`.
    """
    waiting: dict[str, float] = {}
    sources = {step.gather.target: step.gather.source for step in program.steps if isinstance(step, GatherEinsumStep)}
    for one in projections(program):
        for view in (sources.get(one.inputs[0], one.inputs[0]), one.operator.output):
            waiting[view] = float(program.local_bytes[view])
    return sum(waiting.values())
