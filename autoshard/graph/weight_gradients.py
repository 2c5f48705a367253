"""Which gradients of weights a backward may leave for later, and what waits with them.

Those of projections, x[rows, contracted] w[columns, contracted]^T with a parameter w: dw = dy^T x needs only x and dy.
"""

from __future__ import annotations

from autoshard.graph.count import operator_steps
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program
from autoshard.graph.redistribute import local_bytes


def is_projection(graph: Graph, op: Operator) -> bool:
    """Whether an operator is such a product."""
    if op.kind != "einsum" or graph.tensors[op.inputs[1]].role != "parameter":
        return False
    x, w, out = (graph.tensors[name].dims for name in (*op.inputs, op.output))
    contracted = tuple(dim for dim in x if dim not in out)
    rows = tuple(dim for dim in x if dim in out)
    columns = tuple(dim for dim in w if dim not in contracted)
    return (rows + contracted, columns + contracted, rows + columns) == (x, w, out) and bool(contracted and columns)


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
            waiting[view] = float(
                local_bytes(program.graph, program.tensor(view).name, program.states[view], program.axes)
            )
    return sum(waiting.values())
