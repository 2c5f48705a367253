"""From a graph, a mesh and prices to the choices that take least time within memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.graph.ir import Graph
from autoshard.graph.partition import Choice, partition
from autoshard.graph.redistribute import Axes
from autoshard.layout.sharding import HIDDEN_DIMS, hidden_state, input_states
from autoshard.planner.operators.linear import Minimum, minimise
from autoshard.planner.operators.options import operator_options
from autoshard.planner.operators.prices import Price, Prices, program_price
from autoshard.planner.operators.program import OperatorProblem, OperatorProgram

MEMORY_PRICE = 1e-6
"""Share of the seconds that all of the memory in use costs: of equally fast choices those that hold less win."""
PREFERENCE = 1e-7
"""Share of the seconds that choosing for every operator something else than its first choice costs."""


@dataclass(frozen=True)
class OperatorSolution:
    """A solved problem. choices: by operator name. price: of the program with them."""

    choices: dict[str, Choice]
    price: Price


def block_problem(graph: Graph, axes: Axes, sequence_parallel: bool, prices: Prices, backend: str) -> OperatorProblem:
    """The problem of one graph in which hidden activations enter and leave in the states that all stages share, and
    each operator has the choices that the backend has."""
    hidden = hidden_state(axes, sequence_parallel)
    last = graph.operators[-1].output
    return OperatorProblem(
        graph,
        axes,
        {op.name: operator_options(graph, op, axes, backend, sequence_parallel) for op in graph.operators},
        input_states(graph, axes, hidden),
        {last: hidden if graph.tensors[last].dims in HIDDEN_DIMS else None},
        prices,
    )


def promising(problem: OperatorProblem, limit_s: float) -> OperatorProblem | None:
    """The problem without the choices that leave no way to stay below limit_s seconds: with the fastest ones of all
    other operators and no redistribution at all they take longer. None where nothing stays below it."""
    seconds_of = problem.seconds_of()
    slack_s = limit_s - sum(map(min, seconds_of.values()))
    if slack_s < 0:
        return None
    kept = {
        name: [index for index, one in enumerate(seconds) if one <= min(seconds) + slack_s]
        for name, seconds in seconds_of.items()
    }
    return replace(
        problem,
        options={name: tuple(problem.options[name][index] for index in indices) for name, indices in kept.items()},
        seconds={name: tuple(seconds_of[name][index] for index in indices) for name, indices in kept.items()},
    )


def priced(problem: OperatorProblem, choices: dict[str, Choice]) -> OperatorSolution:
    """The solution of given choices, by operator name: their program and its price. Raises NoTransition where they do
    not meet."""
    program = partition(problem.graph, problem.axes, choices, problem.given, problem.outputs)
    return OperatorSolution(choices, program_price(program, problem.prices))


def solve(problem: OperatorProblem, typical: Price, relative_gap: float = 0.0) -> OperatorSolution | None:
    """The fastest choices whose memory stays below every row's capacity; None where none are found.

    typical: a price of the same size, which tie-breaks are measured by. relative_gap: how much faster others may be.
    """
    memory = max(typical.memory_bytes, default=0.0)
    memory_price = MEMORY_PRICE * typical.seconds / memory if memory else 0.0
    preference = PREFERENCE * typical.seconds / len(problem.graph.operators)
    program = OperatorProgram(problem, memory_price, preference)
    values, _ = _minimise(program, typical.seconds, relative_gap)
    return None if values is None else priced(problem, program.choices(values))


def least_s(problem: OperatorProblem, typical_s: float, relative_gap: float = 0.0) -> float:
    """Seconds that no choices take less than; infinite where none meet each other. typical_s: seconds of the same
    size. relative_gap: as in `solve`."""
    return _minimise(OperatorProgram(problem), typical_s, relative_gap).at_least


def _minimise(program: OperatorProgram, typical_s: float, relative_gap: float) -> Minimum:
    """The minimum in seconds."""
    scale = 1e5 / typical_s  # HiGHS has absolute tolerances
    program.linear.costs = [cost * scale for cost in program.linear.costs]
    values, at_least = minimise(program.linear, relative_gap)
    return Minimum(values, at_least / scale)
