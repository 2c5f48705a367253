"""The integer program of operator shardings: against brute force, and on blocks of Llama against Megatron's rule."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from autoshard.graph.ir import Graph, GraphBuilder
from autoshard.graph.partition import Choice
from autoshard.graph.redistribute import NoTransition
from autoshard.planner.operators.options import operator_options
from autoshard.planner.operators.prices import MemoryRow, Price
from autoshard.planner.operators.program import OperatorProblem
from autoshard.planner.operators.solve import least_s, priced, solve
from tests.cases import some
from tests.unit.operator_prices import random_prices

HIDDEN = "batch seq embed"


def random_graph(rng: random.Random) -> Graph:
    """Norms, products, sums and attention over hidden activations that several operators read."""
    sizes = {"batch": 2, "seq": 8, "embed": 8, "ffn": 16, "kvhead": 4, "group": 2, "headdim": 4}
    b = GraphBuilder(sizes, 2)
    hidden = [b.hidden_input("hidden", HIDDEN)]
    wide: list[str] = []
    for index in range(rng.randint(2, 4)):
        name, x = f"layers.0.op{index}", rng.choice(hidden[-2:])
        b.module = rng.choice(("attention", "mlp", "residual"))
        kind = rng.random()
        if kind < 0.2:
            weight = b.parameter(f"{name}.weight", "embed")
            dims = tuple(HIDDEN.split())
            hidden.append(b.operator("norm", name, (x, weight), dims, dims[:2], function="rms", eps=1e-5))
        elif kind < 0.55:
            weight = b.parameter(f"{name}.weight", "ffn embed")
            wide.append(b.einsum(name, f"{HIDDEN}, ffn embed -> batch seq ffn", x, weight))
        elif kind < 0.7 and wide:
            weight = b.parameter(f"{name}.weight", "embed ffn")
            hidden.append(b.einsum(name, f"batch seq ffn, embed ffn -> {HIDDEN}", rng.choice(wide), weight))
        elif kind < 0.8 and wide:
            wide.append(b.elementwise("silu_mul", name, rng.choice(wide), rng.choice(wide)))
        else:
            hidden.append(b.elementwise(rng.choice(("add", "silu_mul")), name, x, rng.choice(hidden)))
    return b.build()


def random_problem(seed: int) -> OperatorProblem:
    rng = random.Random(seed)
    graph = random_graph(rng)
    axes = {"tp": 2} if rng.random() < 0.7 else {"tp1": 2, "tp0": 2}
    options: dict[str, tuple[Choice, ...]] = {}
    for op in graph.operators:
        every = operator_options(graph, op, axes, "torch")
        options[op.name] = tuple(rng.sample(every, min(len(every), 4)))
    given = {"hidden": tuple(rng.choice(("batch", "seq", "I")) for _ in axes)}
    last = graph.operators[-1].output
    wants = given["hidden"] if graph.tensors[last].dims == tuple(HIDDEN.split()) and rng.random() < 0.7 else None
    row = MemoryRow(
        lambda shared, matrix, learned: 8.0 + 4 * len(shared) - 3 * matrix - 2 * (not learned),
        rng.uniform(1, 4),
        1.0,
        rng.uniform(0, 2),
        inf,
    )
    return OperatorProblem(graph, axes, options, given, {last: wants}, random_prices(rng, (row,)))


def brute_force(problem: OperatorProblem) -> list[Price]:
    """The price of every combination that the state table allows."""
    combinations = (dict(zip(problem.options, chosen, strict=True)) for chosen in product(*problem.options.values()))
    return [price for choices in combinations if (price := price_of(problem, choices)) is not None]


def price_of(problem: OperatorProblem, choices: dict[str, Choice]) -> Price | None:
    try:
        return priced(problem, choices).price
    except NoTransition:
        return None


def with_capacity(problem: OperatorProblem, capacity_bytes: float) -> OperatorProblem:
    rows = tuple(replace(row, capacity_bytes=capacity_bytes) for row in problem.prices.memory)
    return replace(problem, prices=replace(problem.prices, memory=rows))


@pytest.mark.parametrize("chunk", some(range(10), 2))
def test_the_integer_program_is_brute_force(chunk: int) -> None:
    solved = 0
    for seed in range(chunk * 20, chunk * 20 + 20):
        problem = random_problem(seed)
        prices = brute_force(problem)
        if not prices:
            continue
        least, most = (pick(price.memory_bytes[0] for price in prices) for pick in (min, max))
        for share in (0.0, 0.3, 1.0):
            capacity = (least + share * (most - least)) * (1 + 1e-6)
            best = min(p.seconds for p in prices if p.memory_bytes[0] <= capacity)
            solution = solve(with_capacity(problem, capacity), prices[0])
            assert solution is not None, seed
            assert solution.price.memory_bytes[0] <= capacity * (1 + 1e-6), seed
            assert solution.price.seconds == pytest.approx(best, rel=1e-4), f"seed {seed}, {share}"
            solved += 1
        assert solve(with_capacity(problem, least * 0.99), prices[0]) is None, seed
        unlimited, best = replace(problem, prices=replace(problem.prices, memory=())), min(p.seconds for p in prices)
        assert best * (1 - 1e-6) <= least_s(unlimited, best) <= best * (1 + 1e-9), seed
    assert solved > 30
