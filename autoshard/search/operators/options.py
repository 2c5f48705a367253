"""What an operator may do along the axes that the solver decides; the other axes follow the rule."""

from __future__ import annotations

from itertools import product

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import Choice
from autoshard.graph.redistribute import Axes
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.layout.sharding import operator_choice


def solved_axes(axes: Axes) -> tuple[str, ...]:
    """Tensor parallelism's; the batch, the sequence of cp and the experts are the outer search's."""
    return tuple(axis for axis in axes if axis in TENSOR_PARALLEL_AXES)


def is_legal(op: Operator, axis: str, value: str) -> bool:
    """Whether the operator has such a choice along a tensor-parallel axis, sizes apart.

    Attention that passes pieces of the sequence around owns the sequence: no other axis may split it.
    """
    if value in (INVARIANT, REPLICATED):
        return True
    if value == PARTIAL:
        return KINDS[op.kind].linear_input is not None
    if op.kind == "attention" and value == "seq" and "context_parallel" in op.attributes:
        return False
    return value in op.loop_dims


def operator_options(graph: Graph, op: Operator, axes: Axes, backend: str) -> tuple[Choice, ...]:
    """Every choice that divides, the rule's first: of equals it is taken.

    nxd: what the rule gives with or without sequence parallelism; NxD has layers for nothing else.
    """
    rules = [operator_choice(op, axes, sequence_parallel) for sequence_parallel in (True, False)]
    solved = solved_axes(axes)
    if backend == "nxd":
        values = [list(dict.fromkeys(rule[axis] for rule in rules)) for axis in solved]
    else:
        every = (*op.loop_dims, INVARIANT, REPLICATED, PARTIAL)
        values = [
            list(dict.fromkeys((rules[0][axis], *(value for value in every if is_legal(op, axis, value)))))
            for axis in solved
        ]
    combined = ({**rules[0], **dict(zip(solved, chosen, strict=True))} for chosen in product(*values))
    return tuple(choice for choice in combined if _divides(graph, op, choice, axes))


def _divides(graph: Graph, op: Operator, choice: Choice, axes: Axes) -> bool:
    pieces: dict[str, int] = {}
    for axis, size in axes.items():
        dim = choice[axis]
        if dim in op.loop_dims:
            pieces[dim] = pieces.get(dim, 1) * size
    return all(graph.sizes[dim] % count == 0 for dim, count in pieces.items())
