"""The choices that an operator has along the axes that the solver decides; the other axes follow the rule."""

from __future__ import annotations

from itertools import product

from autoshard.backends.registry import BACKENDS
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.partition import Choice
from autoshard.graph.redistribute import Axes
from autoshard.graph.states import INVARIANT
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.layout.sharding import divides, legal_values, operator_choice


def operator_options(
    graph: Graph, op: Operator, axes: Axes, backend: str, sequence_parallel: bool = True
) -> tuple[Choice, ...]:
    """Every choice that divides, the rule's first: of equals it is taken. Sequences of a microbatch are not shared over
    tensor-parallel axes: how many ranks share the batch is dp, which the outer search decides.

    A backend without a solver's freedom knows one tensor-parallel group: it splits the sequence over all of it or not
    at all.
    """
    solved = BACKENDS[backend].solves_operators
    rule = operator_choice(op, axes, sequence_parallel)
    values = [_values(op, axis, rule, solved) for axis in axes]
    combined = (dict(zip(axes, chosen, strict=True)) for chosen in product(*values))
    whole = (choice for choice in combined if solved or _over_all_or_none(choice))
    return tuple(choice for choice in whole if divides(graph, op, choice, axes))


def _values(op: Operator, axis: str, rule: Choice, solved: bool) -> tuple[str, ...]:
    legal = legal_values(op, axis, rule, solved)
    return tuple(value for value in legal if value != "batch") if axis in TENSOR_PARALLEL_AXES else legal


def _over_all_or_none(choice: Choice) -> bool:
    over = {value for axis, value in choice.items() if axis in TENSOR_PARALLEL_AXES and value in ("seq", INVARIANT)}
    return len(over) < 2
