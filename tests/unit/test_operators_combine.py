"""The outer search over layouts with solved operators: its bounds against random shardings, its answer against all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.after import after_s_per_parameter, update_s_per_parameter
from autoshard.cost.collectives import collective_law, group_shape
from autoshard.cost.estimate import Estimate, estimate
from autoshard.cost.local_shape import LocalShape, local_shape, mesh_order, strategy_mesh
from autoshard.cost.memory import BUCKET_BYTES, memory_values
from autoshard.cost.rank_load import rank_load, telling_ranks
from autoshard.cost.stage import strategy_parts
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.working_bytes import _inner_bytes, working_bytes
from autoshard.cost.zero_sharding import parts_state, zero_axes
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.partition import Choice, GatherEinsumStep
from autoshard.graph.redistribute import Axes, NoTransition
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.sharding import OperatorChoices, differing, stage_program
from autoshard.layout.strategy import Strategy
from autoshard.layout.template import template_of
from autoshard.models.registry import load_model
from autoshard.planner.axis_orders import other_orders, stage_laws
from autoshard.planner.grid.sharding_bounds import (
    ROUNDING,
    AnyOrderTable,
    Least,
    LeastTable,
    block_limits_s,
    step_times_at_least_s,
)
from autoshard.planner.grid.unit_costs import part_numbers, unit_programs
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.operators import improve, solve
from autoshard.planner.operators.combine import WORTH, combine, even
from autoshard.planner.operators.improve import Solver, graphs, layout_prices
from autoshard.planner.operators.options import operator_options
from autoshard.planner.operators.prices import _working_bytes, program_price
from autoshard.planner.operators.solve import block_problem
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import every_set, recompute_sets
from autoshard.plans.plan import operator_choices
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.lora import Lora
from autoshard.spec.training import DTYPE_BYTES, TrainingSpec, load_precision
from tests.cases import some
from tests.unit.test_search import every_draft, toy_cluster, toy_model


def toy_problem(seed: int, memory_bytes: float = 1e12) -> Problem:
    rng = random.Random(seed)
    model = toy_model("llama3-8b", num_hidden_layers=rng.choice([1, 2, 4]), vocab_size=rng.choice([64, 512]))
    training = TrainingSpec(64, rng.choice([4, 16]), load_precision("mixed_precision"))
    return Problem(model, training, toy_cluster(2 if seed % 3 else 4, memory_bytes), "torch")


def with_tp(problem: Problem) -> list[Strategy]:
    return [one for one in every_draft(problem) if one.tp > 1]


def shardings(problem: Problem, strategy: Strategy, rng: random.Random, count: int) -> Iterator[OperatorChoices]:
    """Random ones: some operators otherwise than by the rule."""
    mesh = strategy_mesh(problem.model, problem.cluster, strategy)
    rule = operator_choices(problem.model, problem.training, problem.cluster, strategy)
    every: dict[str, tuple[Choice, ...]] = {}
    for graph in graphs(problem, strategy):
        for op in graph.operators:
            every[template_of(op.name)] = operator_options(graph, op, mesh.stage_axes, "torch")
    for _ in range(count):
        changed = rng.sample(sorted(every), rng.randint(1, len(every)))
        yield differing({**rule, **{name: rng.choice(every[name]) for name in changed}}, rule)


def cost(problem: Problem, strategy: Strategy, operators: OperatorChoices) -> Estimate | None:
    try:
        return estimate(*problem[:3], strategy, operators=operators)
    except NoTransition:
        return None


@pytest.mark.parametrize("seed", some(range(3), step=2))
def test_no_sharding_beats_the_bounds(seed: int) -> None:
    """Neither that of perfect shares nor that of the integer program, and neither says that one that fits does not."""
    problem, rng = toy_problem(seed), random.Random(seed)
    sets = recompute_sets(problem, Pins())
    solver, tried = Solver(problem), 0
    for strategy in rng.sample(with_tp(problem), 4):
        strategy = replace(strategy, recompute=(rng.choice(sets),) * len(strategy.stage_layers))
        draft = Draft.of(strategy)
        for place, operators in enumerate(shardings(problem, strategy, rng, 12)):
            found = cost(problem, strategy, operators)
            if found is None:
                continue
            known_s = found.step_time_s * (1 + 1e-9)
            solved: dict[LocalShape, Least] = {}
            table = LeastTable(problem, sets, True, solved)
            table.add(draft)
            if place % 4 == 0:
                shape = local_shape(draft)
                solved[shape] = solver.fastest(even(problem, draft, "none"), block_limits_s(table, known_s)[shape])
                table = LeastTable(problem, sets, True, solved)
                table.add(draft)
            limit = found.fullest.total_bytes * (1 + 1e-9)
            assert step_times_at_least_s(table, True, limit, known_s)[draft] <= known_s
            tried += 1
    assert tried > 8


def test_no_bound_says_that_a_layout_of_the_rule_needs_more_than_it_does() -> None:
    """What is given back before the largest weights have their gradient was taken for half of it."""
    problem = toy_problem(2)
    for strategy in random.Random(2).sample(with_tp(problem), 6):
        for name in every_set(problem.model):
            alone = replace(strategy, recompute=(name,) * len(strategy.stage_layers))
            table = LeastTable(problem, (name,), True, {})
            table.add(Draft.of(alone))
            limit_bytes = estimate(*problem[:3], alone).fullest.total_bytes * (1 + 1e-9)
            assert Draft.of(alone) in step_times_at_least_s(table, True, limit_bytes, inf)


def test_bounds_of_any_order_are_below_those_of_every_order() -> None:
    """And no layout is left out that is not left out in each order of its axes."""
    training = TrainingSpec(8192, 64, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 2), "torch")
    sets, rng, limit = recompute_sets(problem, Pins()), random.Random(1), problem.cluster.device.memory_bytes
    drafts = [one for mesh in legal_layouts(problem, Pins(), Tally()) for one in mesh.drafts if one.tp > 1]
    every = {one: (one.axis_order, *other_orders(problem, Pins(), one)) for one in rng.sample(drafts, 600)}
    free, ordered = AnyOrderTable(problem, sets, True, {}), LeastTable(problem, sets, True, {})
    for draft, orders in every.items():
        free.add(draft)
        for order in orders:
            ordered.add(draft._replace(axis_order=order))
    steps_s = sorted(step_times_at_least_s(ordered, True, limit, inf).values())
    compared = 0
    for known_s in (inf, steps_s[len(steps_s) // 2]):
        in_any, in_each = (step_times_at_least_s(table, True, limit, known_s) for table in (free, ordered))
        for draft, orders in every.items():
            bounds = [in_each[one] for order in orders if (one := draft._replace(axis_order=order)) in in_each]
            assert not bounds or in_any[draft] <= min(bounds) * (1 + 1e-12)
            compared += len(bounds) > 1
    assert compared > 50


def test_blocks_whose_collectives_have_equal_laws_are_bounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = real_layout(SHAPES[0])[0]
    draft = Draft(2, 1, 16, 16, 1, context_parallel="zigzag_ring", attention_kernel="flash")
    layouts = [
        even(problem, draft._replace(axis_order=order), "none") for order in (AXIS_ORDER, ("cp", "pp", "dp", "tp"))
    ]
    asked: list[float] = []

    def fastest_s(block: object, limit_s: float) -> float:
        asked.append(limit_s)
        return min(limit_s, 1.0)

    monkeypatch.setattr(improve, "_fastest_s", fastest_s)
    solver = Solver(problem)
    assert solver.fastest(layouts[0], 0.5) == solver.fastest(layouts[0], 0.5) == Least(0.5, 1.0, 1.0)
    assert asked == [inf, inf, 0.5]
    assert solver.fastest(layouts[0], 2.0) == Least(1.0, 1.0, 1.0)  # a block that takes the limit may take more
    assert solver.fastest(layouts[0], 3.0) == Least(1.0, 1.0, 1.0)  # what takes less takes that long below any limit
    assert solver.fastest(layouts[0], 0.7) == Least(0.7, 1.0, 1.0)
    assert asked == [inf, inf, 0.5, 2.0]
    otherwise = even(problem, draft._replace(context_parallel="ring"), "none")
    solver.fastest(otherwise, 2.0)  # another block, the same ends
    assert asked == [inf, inf, 0.5, 2.0, 2.0]
    is_alike = stage_laws(problem, local_shape(layouts[0])) == stage_laws(problem, local_shape(layouts[1]))
    solver.fastest(layouts[1], 2.0)
    assert len(asked) == (5 if is_alike else 8)


SHAPES = (
    LocalShape(2, 8, 1, 4, True, "flash", "zigzag_ring"),
    LocalShape(8, 16, 1, 1, True, "flash", "ring"),
    LocalShape(8, 2, 1, 4, False, "flash", "all_gather"),
    LocalShape(2, 1, 1, 2, True, "plain", "all_gather"),
)


def real_layout(shape: LocalShape, pp: int = 1, zero: int = 1) -> tuple[Problem, Draft]:
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 16), "torch")
    degrees = Draft(
        shape.tp, pp, 512 // (shape.tp * shape.cp * pp), shape.cp, shape.ep, shape.microbatch_size, zero=zero
    )
    return problem, degrees._replace(
        sequence_parallel=shape.sequence_parallel,
        attention_kernel=shape.attention_kernel,
        context_parallel=shape.context_parallel,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_are_below_the_rule_also_of_rings(shape: LocalShape) -> None:
    """A ring sends while attention works. And k microbatches at once take no more than k times one."""
    problem, draft = real_layout(shape)
    solver, k = Solver(problem), 4
    per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    one, several = (
        solver.fastest(even(problem, draft._replace(microbatch_size=count * draft.microbatch_size), "none"), inf)
        for count in (1, k)
    )
    units = unit_programs(problem, shape)
    works = (units.block, units.embedding, units.head)
    by_rule = part_numbers(problem, [shape], ("none",))[0, 0, :, :2].sum(1)
    for least_s, of_several_s, rule_s, work in zip(one, several, by_rule, works, strict=False):
        assert least_s <= (rule_s + per_parameter * sum(work.parameters.values())) * (1 + ROUNDING)
        assert of_several_s / k <= least_s * (1 + ROUNDING)


@pytest.mark.parametrize("lora", [None, Lora(8, 8.0, ("down_proj", "q_proj"))], ids=["all learned", "adapters"])
@pytest.mark.parametrize("zero", range(4))
def test_rows_of_memory_count_state_as_the_cost_model_does(zero: int, lora: Lora | None) -> None:
    shape = LocalShape(8, 2, 1, 1, True, "flash", "all_gather")
    problem, draft = real_layout(shape, pp=4, zero=zero)
    problem = problem._replace(model=replace(problem.model, lora=lora))
    strategy = even(problem, draft, "none")
    mesh = strategy_mesh(problem.model, problem.cluster, strategy)
    block, *_ = graphs(problem, strategy)
    program = stage_program(block, mesh.stage_axes, True)
    prices = replace(layout_prices(problem, strategy, mesh), parameter_s=lambda axes: 0.0)
    state_only = replace(prices, memory=tuple(replace(row, kept=0, replay=0, working=0) for row in prices.memory))
    found = program_price(program, state_only).memory_bytes
    parts = strategy_parts(problem.model, problem.training, problem.cluster, strategy)
    count = strategy.num_microbatches(problem.training.global_batch_size)
    load, precision = rank_load(strategy, parts, count, 1), problem.training.precision
    state = parts_state(parts, zero, precision, mesh, problem.cluster)
    of_state = memory_values(load, state, precision, problem.cluster.device)[:3]
    assert found[telling_ranks(strategy, parts, count).index(1)] == pytest.approx(sum(of_state), rel=1e-12)


def test_every_choice_of_a_graph_with_adapters_has_a_price() -> None:
    """Some choices read a weight in another state than the others: what ranks may share of it is that of the view."""
    problem, draft = real_layout(LocalShape(8, 2, 1, 1, True, "flash", "all_gather"), zero=3)
    problem = problem._replace(model=replace(problem.model, lora=Lora(8, 8.0, ("q_proj",))))
    strategy = even(problem, draft, "none")
    mesh = strategy_mesh(problem.model, problem.cluster, strategy)
    block, *_ = graphs(problem, strategy)
    prices = layout_prices(problem, strategy, mesh)
    priced = block_problem(block, mesh.stage_axes, True, prices, "torch").seconds_of()
    assert priced.keys() == {op.name for op in block.operators} and min(map(min, priced.values())) >= 0


@pytest.mark.parametrize("shape", SHAPES)
def test_operators_work_in_what_the_cost_model_says_buffers_of_rings_included(shape: LocalShape) -> None:
    problem, draft = real_layout(shape)
    strategy = even(problem, draft, "none")
    mesh = strategy_mesh(problem.model, problem.cluster, strategy)
    program = stage_program(graphs(problem, strategy)[0], mesh.stage_axes, shape.sequence_parallel)
    inside = 0.0
    for step in program.steps:
        if not isinstance(step, GatherEinsumStep):  # the solver knows no such step
            assert _working_bytes(program, step) == working_bytes(program, step)
            inside += _inner_bytes(program, step)
    ring = shape.cp > 1 and shape.context_parallel != "all_gather"
    assert bool(inside) == (ring or shape.attention_kernel == "plain")


@pytest.mark.parametrize("zero", range(2))
def test_a_parameter_costs_once_a_step_what_the_cost_model_says(zero: int) -> None:
    """A norm's gradient is summed over tp too; dp alone shares its state. A bucket's latency is spread over it."""
    problem, draft = real_layout(LocalShape(8, 1, 1, 1, True, "flash"), zero=zero)
    cluster, precision = problem.cluster, problem.training.precision
    mesh = strategy_mesh(problem.model, cluster, even(problem, draft, "none"))
    norm = next(
        axes for axes in unit_programs(problem, local_shape(draft)).block.parameters if set(axes) - set(zero_axes(axes))
    )
    shared, within = zero_axes(norm), tuple(axis for axis in norm if axis not in zero_axes(norm))

    def s_per_byte(kind: str, axes: tuple[str, ...]) -> float:
        law = collective_law(kind, group_shape(mesh_order(mesh), tuple(sorted(axes)), cluster), cluster)
        return float(law.seconds_per_byte + law.latency_s / BUCKET_BYTES)

    reduced, kept = DTYPE_BYTES[precision.gradient_reduce_dtype], DTYPE_BYTES[precision.parameter_dtype]
    expected_s = reduced * s_per_byte("all_reduce", within)
    expected_s += update_s_per_parameter(precision, cluster.device) / (mesh.size(shared) if zero else 1)
    if zero:
        expected_s += reduced * s_per_byte("reduce_scatter", shared) + kept * s_per_byte("all_gather", shared)
    else:
        expected_s += reduced * s_per_byte("all_reduce", shared)
    assert after_s_per_parameter(norm, zero, precision, mesh, cluster) == pytest.approx(expected_s, rel=1e-12)


OTHERS = {
    "model.embed_tokens": "embed",
    "model.layers.*.mlp.gate_proj": "seq",
    "model.layers.*.mlp.up_proj": "seq",
    "model.layers.*.mlp.act_fn": "seq",
    "model.layers.*.mlp.down_proj": "seq",
}
"""What the brute force tries besides the rule: whole weights of the MLP on every rank, an embedding cut otherwise."""


def every_sharding(problem: Problem, strategy: Strategy) -> Iterator[OperatorChoices]:
    mesh = strategy_mesh(problem.model, problem.cluster, strategy)
    rule = operator_choices(problem.model, problem.training, problem.cluster, strategy)
    tables = []
    for graph in graphs(problem, strategy):
        for op in graph.operators:
            if template_of(op.name) in OTHERS:
                found = few(graph, op, mesh.stage_axes, "torch", strategy.sequence_parallel)
                tables.append([(template_of(op.name), choice) for choice in found])
    for chosen in product(*tables):
        yield differing({**rule, **dict(chosen)}, rule)


def few(graph: Graph, op: Operator, axes: Axes, backend: str, sequence_parallel: bool = True) -> tuple[Choice, ...]:
    """The rule's choice, and of some operators another one."""
    first, *others = operator_options(graph, op, axes, backend, sequence_parallel)
    wanted = OTHERS.get(template_of(op.name))
    return first, *(one for one in others if "tp" in axes and one["tp"] == wanted)


@pytest.mark.parametrize("seed", some([2, 5, 1, 4], 2))
def test_the_outer_search_is_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is memory, what is found is what trying everything finds; where there is little, what is proven
    holds."""
    monkeypatch.setattr(solve, "operator_options", few)
    rng, pins = random.Random(seed), Pins(tp=2, recompute="none", schedule="1f1b")
    problem = toy_problem(seed)
    layouts = [one for one in every_draft(problem) if one.schedule == "1f1b" and one.tp == 2]
    if seed % 2:
        sizes = [estimate(*problem[:3], one).fullest.total_bytes for one in layouts]
        problem = toy_problem(seed, min(sizes) * rng.uniform(1.01, 1.3))
    fitting = [megatron for one in layouts if (megatron := estimate(*problem[:3], one)).fits]
    known_s, limit = min(one.step_time_s for one in fitting), problem.cluster.device.memory_bytes
    found = combine(problem, pins, known_s, limit, exhaustive=True)
    costs = [cost(problem, one, operators) for one in layouts for operators in every_sharding(problem, one)]
    best_s = min(one.step_time_s for one in costs if one is not None and one.fits)
    if found.strategy is None or found.estimate is None:
        assert best_s >= known_s * (1 - found.gap) * (1 - 1e-9)
        return
    assert found.estimate.fits and found.estimate.step_time_s < known_s * (1 - WORTH)
    assert cost(problem, found.strategy, found.operators) == found.estimate
    assert best_s >= found.estimate.step_time_s * (1 - found.gap) * (1 - 1e-9)
    if not seed % 2:
        assert found.estimate.step_time_s <= best_s * (1 + 1e-4)


def test_more_points_are_found_with_more_memory() -> None:
    """A block's Pareto set: faster choices, more memory."""
    model = load_model("llama3-8b")
    problem = Problem(
        model, TrainingSpec(8192, 1024, load_precision("mixed_precision")), load_cluster("trn1.32xlarge", 4), "torch"
    )
    strategy = even(problem, Draft(8, 4, 4, 1, 1, 1, 1, "1f1b", "flash"), "none")
    solver, shape, seconds = Solver(problem), local_shape(Draft(8, 4, 4, 1, 1, 1, 1, "1f1b", "flash")), []
    megatron = estimate(*problem[:3], strategy)
    for share in (0.9, 1.0, 1.3):
        operators = solver.within(shape, strategy, share * megatron.fullest.total_bytes)
        found = None if operators is None else estimate(*problem[:3], strategy, operators=operators)
        seconds.append(inf if found is None else found.step_time_s)
        assert found is None or found.fullest.total_bytes <= share * megatron.fullest.total_bytes
    assert seconds[0] >= seconds[1] >= seconds[2]
    assert seconds[2] < 0.995 * megatron.step_time_s
