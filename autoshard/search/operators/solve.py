"""From a graph, a mesh and prices to the choices that take least time within memory."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.graph.ir import Graph
from autoshard.graph.partition import Choice, Program, partition
from autoshard.graph.redistribute import Axes
from autoshard.layout.sharding import HIDDEN_DIMS, hidden_state, input_states
from autoshard.search.operators.linear import minimise
from autoshard.search.operators.options import operator_options
from autoshard.search.operators.prices import Price, Prices, program_price
from autoshard.search.operators.program import OperatorProblem, OperatorProgram

MEMORY_PRICE = 1e-6
"""Share of the seconds that all of the memory in use costs: of equally fast choices those that hold less win."""
PREFERENCE = 1e-7
"""Share of the seconds that choosing for every operator something else than its first choice costs."""


@dataclass(frozen=True)
class OperatorSolution:
    """choices: by operator name. program: with them. price: of that program."""

    choices: dict[str, Choice]
    program: Program
    price: Price


def block_problem(graph: Graph, axes: Axes, sequence_parallel: bool, prices: Prices, backend: str) -> OperatorProblem:
    """Hidden activations enter and leave as all stages share them; each operator does what the backend can."""
    hidden = hidden_state(axes, sequence_parallel)
    last = graph.operators[-1].output
    return OperatorProblem(
        graph,
        axes,
        {op.name: operator_options(graph, op, axes, backend, sequence_parallel) for op in graph.operators},
        input_states(graph, axes, hidden),
        {last: hidden if graph.tensors[last].dims == HIDDEN_DIMS else None},
        prices,
    )


def priced(problem: OperatorProblem, choices: dict[str, Choice]) -> OperatorSolution:
    program = partition(problem.graph, problem.axes, choices, problem.given, problem.outputs)
    return OperatorSolution(choices, program, program_price(program, problem.prices))


def solve(problem: OperatorProblem, typical: Price) -> OperatorSolution | None:
    """The fastest choices whose memory stays below every row's capacity; None where there are none.

    typical: a price of the same size, which tie-breaks are measured by.
    """
    memory = max(typical.memory_bytes, default=0.0)
    memory_price = MEMORY_PRICE * typical.seconds / memory if memory else 0.0
    preference = PREFERENCE * typical.seconds / len(problem.graph.operators)
    program = OperatorProgram(problem, memory_price, preference)
    scale = 1e5 / typical.seconds  # HiGHS has absolute tolerances
    program.linear.costs = [cost * scale for cost in program.linear.costs]
    values = minimise(program.linear)
    return None if values is None else priced(problem, program.choices(values))
