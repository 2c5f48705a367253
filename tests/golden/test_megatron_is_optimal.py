"""With the memory of Megatron + sequence parallelism the solver's answer for a Llama block is Megatron's; with more
memory it is not."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from autoshard.backends.rules import Problem
from autoshard.cost.local_shape import strategy_mesh
from autoshard.graph.partition import Choice
from autoshard.layout.sharding import choices
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.operators.improve import graphs, layout_prices
from autoshard.planner.operators.solve import OperatorSolution, block_problem, priced, solve
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

MEGATRON = {
    "input_layernorm": "seq",
    "q_proj": "kvhead",
    "k_proj": "kvhead",
    "v_proj": "kvhead",
    "q_rope": "kvhead",
    "k_rope": "kvhead",
    "core_attention": "kvhead",
    "o_proj": "kvhead",
    "attention_residual": "seq",
    "post_attention_layernorm": "seq",
    "gate_proj": "ffn",
    "up_proj": "ffn",
    "act_fn": "ffn",
    "down_proj": "ffn",
    "mlp_residual": "seq",
}


def block(model: str, nodes: int, pp: int, tp: int = 8, recompute: str = "none") -> tuple[OperatorSolution, ...]:
    """(Megatron + SP, the solver's answer within its memory, the answer without a limit)."""
    spec = load_model(model)
    problem = Problem(
        spec,
        TrainingSpec(8192, 1024, load_precision("mixed_precision")),
        load_cluster("trn1.32xlarge", nodes),
        "torch",
    )
    layers = (spec.num_hidden_layers // pp,) * pp
    dp = problem.cluster.world_size // (tp * pp)
    strategy = Strategy(tp, pp, dp, 1, 1, 1, 1, "1f1b", (recompute,), True, 1, "flash", layers)
    mesh = strategy_mesh(spec, problem.cluster, strategy)
    graph, *_ = graphs(problem, strategy)
    prices = layout_prices(problem, strategy, mesh)
    free = block_problem(graph, mesh.stage_axes, True, prices, "torch")
    megatron = priced(free, choices(graph, mesh.stage_axes, True))
    rows = tuple(
        replace(row, capacity_bytes=size * (1 + 1e-9))
        for row, size in zip(prices.memory, megatron.price.memory_bytes, strict=True)
    )
    assert all(row.capacity_bytes == inf for row in prices.memory)
    within = solve(replace(free, prices=replace(prices, memory=rows)), megatron.price)
    unlimited = solve(free, megatron.price)
    assert within is not None and unlimited is not None
    return megatron, within, unlimited


def along(choices: dict[str, Choice], axis: str) -> dict[str, str]:
    return {name.rpartition(".")[2]: choice[axis] for name, choice in choices.items()}


@pytest.mark.parametrize(("model", "nodes", "pp"), [("llama3-8b", 4, 1), ("llama3-70b", 16, 8)])
def test_with_the_memory_of_megatron_the_answer_is_megatron(model: str, nodes: int, pp: int) -> None:
    megatron, within, _ = block(model, nodes, pp)
    assert along(within.choices, "tp") == MEGATRON
    assert within.choices == megatron.choices


@pytest.mark.parametrize(
    ("model", "nodes", "pp", "whole"),
    [("llama3-8b", 4, 1, ("k_proj", "o_proj")), ("llama3-70b", 16, 8, ("k_proj",))],
)
def test_without_a_limit_it_is_not(model: str, nodes: int, pp: int, whole: tuple[str, ...]) -> None:
    """Whole key weights on every rank, each for its piece of the sequence: keys change places, not activations. Of the
    smaller model the output weights too."""
    megatron, _, unlimited = block(model, nodes, pp)
    assert along(unlimited.choices, "tp") == {**MEGATRON, **dict.fromkeys(whole, "seq")}
    assert unlimited.price.seconds < 0.99 * megatron.price.seconds
    assert max(unlimited.price.memory_bytes) > 1.2 * max(megatron.price.memory_bytes)


def test_beyond_the_key_value_heads_the_solver_wins_within_the_memory_of_megatron() -> None:
    """tp=32 with 8 key-value heads, where keys and values would be computed four times over."""
    megatron, within, _ = block("llama3-8b", 4, 1, tp=32)
    assert within.price.seconds < 0.95 * megatron.price.seconds
    assert all(
        one <= other * (1 + 1e-6)
        for one, other in zip(within.price.memory_bytes, megatron.price.memory_bytes, strict=True)
    )
