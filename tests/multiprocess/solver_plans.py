"""Plans whose operators the solver chose under random prices, no two alike, or that are chosen here; none is
Megatron's."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from autoshard.graph.partition import Choice
from autoshard.layout.strategy import Strategy
from autoshard.layout.template import template_of
from autoshard.planner.operators.solve import block_problem, priced, solve
from autoshard.plans.plan import Plan
from tests.cases import ALL
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.unit.operator_prices import random_prices

LAYOUTS = {
    2: {
        "tp": ("llama", strategy(tp=2), 2),
        "tp, no sequence parallel": ("llama", strategy(tp=2, sp=False), 2),
        "tp, microbatches of 2": ("llama", strategy(tp=2, mbs=2, recompute="core_attention+mlp"), 2),
        "plain attention": ("mistral", strategy(tp=2, kernel="plain", recompute="full"), 2),
        "mixtral": ("mixtral", strategy(tp=2), 2),
        "gpt2": ("gpt2", strategy(tp=2), 2),
    },
    4: {
        "kv replicated": ("few kv heads", strategy(tp=4), 2),
        "tp x dp": ("llama", strategy(tp=2, dp=2, recompute="core_attention"), 2),
        "tp x cp": ("llama", strategy(tp=2, cp=2), 2),
        "tp x cp, zigzag ring": ("llama", strategy(tp=2, cp=2, attention="zigzag_ring"), 2),
        "tp x pp": ("llama", strategy(tp=2, pp=2), 4),
        "mixtral ep x tp": ("mixtral", strategy(tp=2, dp=2, ep=2), 2),
    },
}
SEEDS = range(2)
Case = tuple[str, Strategy, int, int | dict[str, str]]
"""(model, strategy, microbatches a step, seed of the solver's prices or what tp does for operators by the ends of their
names, the others as the rule has them)."""
CHOSEN: dict[int, dict[str, Case]] = {
    2: {
        "gathered heads": ("llama", strategy(tp=2, mbs=2), 2, {"o_proj": "embed"}),
        "gathered tokens": ("llama", strategy(tp=2, mbs=2), 2, {"core_attention": "seq", "o_proj": "embed"}),
        "a loss on every rank": ("llama", strategy(tp=2), 2, {"loss": "R"}),
    },
    4: {
        "gathered heads, weights apart": (
            "llama",
            strategy(tp=2, pp=2, schedule="zero_bubble"),
            4,
            {"o_proj": "embed"},
        ),
        "queries over tp and cp": ("llama", strategy(tp=2, cp=2), 2, {"core_attention": "seq"}),
    },
}
CASES: dict[int, dict[str, Case]] = {
    world_size: {
        **{
            f"{name}, seed {seed}": (*layout, seed)
            for number, (name, layout) in enumerate(layouts.items())
            for seed in SEEDS
            if ALL or (number + seed) % 2
        },
        **CHOSEN[world_size],
    }
    for world_size, layouts in LAYOUTS.items()
}
"""By world size and name; of the solver's by default with either seed in turn."""


def case(world_size: int, name: str) -> Plan:
    model, layout, microbatches, how = CASES[world_size][name]
    plan = plan_of(MODELS[model], layout, microbatches)
    others = solved(plan, how) if isinstance(how, int) else _as_told(plan, how)
    return replace(plan, operators={**plan.operators, **others})


def _as_told(plan: Plan, values: dict[str, str]) -> dict[str, Choice]:
    return {
        name: {**choice, "tp": values[end]}
        for name, choice in plan.operators.items()
        for end in values
        if name.endswith(end)
    }


def solved(plan: Plan, seed: int) -> dict[str, Choice]:
    """By template; a table that embedding and head share stays as the rule has it."""
    parts = [(range(1), False, False)]
    if not plan.model.tie_word_embeddings:
        parts += [(range(0), True, False), (range(0), False, True)]
    found: dict[str, Choice] = {}
    for number, (layers, first, last) in enumerate(parts):
        graph, axes = plan.graph(layers, first, last), plan.mesh.stage_axes
        prices = random_prices(Random(10 * seed + number))
        problem = block_problem(graph, axes, plan.strategy.sequence_parallel, prices, "torch")
        rule = priced(problem, {op.name: plan.operators[template_of(op.name)] for op in graph.operators})
        solution = solve(problem, rule.price)
        assert solution is not None
        found.update({template_of(name): choice for name, choice in solution.choices.items()})
    return found
