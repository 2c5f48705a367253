"""Operator choices of one layout that beat the rule of layout/sharding.py in it.

The integer program is solved under the memory that the layout leaves; the cost model then prices the whole layout with
the choices, and only that counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from math import inf

from autoshard.backends.rules import Problem
from autoshard.cost.after import after_s_per_parameter
from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.compute import operator_seconds, quantized_products
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import LocalShape, local_shape, mesh_order, strategy_mesh
from autoshard.cost.memory import living_bytes, memory_values
from autoshard.cost.orthogonal import MatricesByAxes, MatrixWork
from autoshard.cost.rank_load import RankLoad, rank_load, telling_ranks
from autoshard.cost.stacks import COMPILED
from autoshard.cost.stage import strategy_parts
from autoshard.cost.stage_program import rewrites
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import Contents, ModelContents, State, mesh_state, parts_state
from autoshard.graph.ir import Graph
from autoshard.graph.partition import Choice, OperatorStep, Program
from autoshard.graph.recompute import NO_RECOMPUTE, members
from autoshard.layout.context_parallel import UNUSED, with_context_parallel
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import OperatorChoices, choices, differing
from autoshard.layout.strategy import Strategy
from autoshard.layout.template import template_of
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.axis_orders import Laws, stage_laws
from autoshard.planner.grid.sharding_bounds import Least
from autoshard.planner.operators.prices import Axes, MemoryRow, Prices
from autoshard.planner.operators.program import OperatorProblem
from autoshard.planner.operators.solve import OperatorSolution, block_problem, least_s, priced, promising, solve
from autoshard.spec.training import DTYPE_BYTES, MUON

ATTEMPTS = 3
"""Memory that the rows do not see (whole buckets, other stages' ends) may push a solution over: it is solved again with
that much less."""
GAP = 1e-5
"""Share of a block's time below which one solution is as good as another."""


class Solver:
    """Solves blocks and ends of layouts of one problem; the ends once for each local shape. What has no limit of memory
    is solved once for all local shapes whose collectives have the same laws."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._ends: dict[LocalShape, dict[str, Choice]] = {}
        self._least_blocks: dict[tuple[LocalShape, Laws], tuple[float, float]] = {}  # seconds, and the limit of these
        self._least_ends: dict[tuple[LocalShape, Laws], tuple[float, ...]] = {}

    def fastest(self, strategy: Strategy, limit_s: float) -> Least:
        """The seconds of a block and of the ends that no choices beat, whatever memory they need.

        strategy: any one of a local shape. limit_s: seconds beyond which a block is of no interest: it is then said to
        take that long.
        """
        laws = stage_laws(self._problem, local_shape(strategy))
        shape = replace(local_shape(strategy), placement=())
        of_ends = replace(shape, context_parallel=UNUSED), laws  # nothing attends there
        if of_ends not in self._least_ends:
            self._least_ends[of_ends] = self._solved_ends(strategy)
        seconds, below_s = self._least_blocks.get((shape, laws), (0.0, 0.0))
        if seconds == below_s < limit_s:
            (block,) = _bound_problems(self._problem, strategy, [_block(self._problem, strategy)])
            seconds = _fastest_s(block, limit_s)
            self._least_blocks[shape, laws] = seconds, limit_s
        return Least(min(seconds, limit_s), *self._least_ends[of_ends])

    def _solved_ends(self, strategy: Strategy) -> tuple[float, ...]:
        """Seconds that the embedding and the head take at least; 0 where they share a table, which is left to the
        rule."""
        if self._problem.model.shares_embedding:
            return 0.0, 0.0
        ends = _bound_problems(self._problem, strategy, _ends(self._problem, strategy))
        return tuple(_fastest_s(end, inf) for end in ends)

    def within(
        self, shape: LocalShape, strategy: Strategy, limit_bytes: float, limit_s: float = inf
    ) -> OperatorChoices | None:
        """The fastest choices with which the layout needs no more than the limit, those that differ from the rule; None
        where there are none. limit_s: beyond which a block is of no interest."""
        problem = self._problem
        mesh = strategy_mesh(problem.model, problem.cluster, strategy)
        rule = _rule(problem, strategy, mesh)
        if shape not in self._ends:
            self._ends[shape] = _solve_ends(problem, strategy, mesh)
        reserve = problem.cluster.device.memory_bytes - limit_bytes
        for _ in range(ATTEMPTS):
            block = _solve_block(problem, strategy, mesh, reserve, limit_s)
            if block is None:
                return None
            others = differing({**rule, **self._ends[shape], **block}, rule)
            cost = estimate(*problem[:3], strategy, operators=others)
            if cost.fullest.total_bytes <= limit_bytes:
                return others
            reserve += 1.01 * (cost.fullest.total_bytes - limit_bytes)
        return None


def _bound_problems(problem: Problem, strategy: Strategy, of: Iterable[Graph]) -> list[OperatorProblem]:
    """The problems of these graphs for a bound: of parameters only the gradient accumulation is priced, nothing is
    recomputed, and there is memory for everything."""
    mesh = strategy_mesh(problem.model, problem.cluster, strategy)
    accumulation_s = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    prices = replace(_prices(problem, strategy, mesh), parameter_s=lambda axes: accumulation_s, recompute=NO_RECOMPUTE)
    return [block_problem(graph, mesh.stage_axes, strategy.sequence_parallel, prices, problem.backend) for graph in of]


def _fastest_s(problem: OperatorProblem, limit_s: float) -> float:
    """A bound of all choices, not above limit_s."""
    few = problem if limit_s == inf else promising(problem, limit_s)
    if few is None:
        return limit_s
    return min(limit_s, least_s(few, limit_s if limit_s < inf else 1.0, GAP))


def graphs(problem: Problem, strategy: Strategy) -> tuple[Graph, ...]:
    """One block, the embedding and the head, as the layout's microbatches run through them; tied ends are one."""
    return _block(problem, strategy), *_ends(problem, strategy)


def _block(problem: Problem, strategy: Strategy) -> Graph:
    return _graph(problem, strategy, 1, False, False)


def _ends(problem: Problem, strategy: Strategy) -> tuple[Graph, ...]:
    ends = ((True, True),) if problem.model.shares_embedding else ((True, False), (False, True))
    return tuple(_graph(problem, strategy, 0, *end) for end in ends)


def _graph(problem: Problem, strategy: Strategy, layers: int, first: bool, last: bool) -> Graph:
    model, training = problem.model, problem.training
    batch = strategy.microbatch_size * strategy.dp
    sizes = dim_sizes(model, batch, training.sequence_length, strategy.tp, training.expert_slots(strategy.ep))
    size, kernel = DTYPE_BYTES[training.precision.compute_dtype], strategy.attention_kernel
    graph = stage_graph(model, sizes, range(layers), first, last, kernel, size)
    shared = with_context_parallel(graph, strategy.context_parallel, strategy.cp)
    return rewrites(model, training, range(layers), last).of(shared)


def _rule(problem: Problem, strategy: Strategy, mesh: Mesh) -> dict[str, Choice]:
    by_template: dict[str, Choice] = {}
    for graph in graphs(problem, strategy):
        by_name = choices(graph, mesh.stage_axes, strategy.sequence_parallel)
        by_template.update({template_of(name): choice for name, choice in by_name.items()})
    return by_template


def _solve_ends(problem: Problem, strategy: Strategy, mesh: Mesh) -> dict[str, Choice]:
    """By template: embedding and head within the memory that they have by the rule. A table that they share is left to
    the rule."""
    solved: dict[str, Choice] = {}
    for graph in _ends(problem, strategy) if not problem.model.shares_embedding else ():
        solved.update(_solve_end(problem, strategy, mesh, graph))
    return solved


def _solve_block(
    problem: Problem, strategy: Strategy, mesh: Mesh, reserve_bytes: float, limit_s: float
) -> dict[str, Choice] | None:
    """By template: within all memory that the rest leaves."""
    block = _block(problem, strategy)
    prices = layout_prices(problem, strategy, mesh)
    whole = block_problem(block, mesh.stage_axes, strategy.sequence_parallel, prices, problem.backend)
    before = priced(whole, choices(block, mesh.stage_axes, strategy.sequence_parallel))
    rows = _with_room(problem, strategy, mesh, before, reserve_bytes)
    limited = promising(replace(whole, prices=replace(prices, memory=rows)), limit_s)
    solution = None if limited is None else solve(limited, before.price, GAP)
    return None if solution is None else _by_template(solution)


def _by_template(solution: OperatorSolution | None) -> dict[str, Choice]:
    return {} if solution is None else {template_of(name): choice for name, choice in solution.choices.items()}


def _solve_end(problem: Problem, strategy: Strategy, mesh: Mesh, graph: Graph) -> dict[str, Choice]:
    prices = replace(layout_prices(problem, strategy, mesh), recompute="none")
    rows = tuple(replace(row, kept=1.0) for row in prices.memory[:1])
    whole = block_problem(
        graph, mesh.stage_axes, strategy.sequence_parallel, replace(prices, memory=rows), problem.backend
    )
    before = priced(whole, choices(graph, mesh.stage_axes, strategy.sequence_parallel))
    capped = tuple(
        replace(row, capacity_bytes=size * (1 + 1e-9))
        for row, size in zip(rows, before.price.memory_bytes, strict=True)
    )
    return _by_template(solve(replace(whole, prices=replace(prices, memory=capped)), before.price))


def layout_prices(problem: Problem, strategy: Strategy, mesh: Mesh) -> Prices:
    """The cost model's prices of one block of the layout; the rows of memory have no capacity yet.

    All blocks are sharded alike. Where stages differ in what they recompute, the prices are those of the stages that
    recompute least.
    """
    least = min(strategy.recompute, key=lambda name: len(members(name)))
    return replace(_prices(problem, strategy, mesh), memory=_rows(problem, strategy, mesh), recompute=least)


def _prices(problem: Problem, strategy: Strategy, mesh: Mesh) -> Prices:
    """Without memory and recompute."""
    training, cluster = problem.training, problem.cluster
    order, dtype = mesh_order(mesh), training.precision.compute_dtype
    count = strategy.num_microbatches(training.global_batch_size)
    products = quantized_products(cluster.device, training.precision)

    def operator_s(program: Program, step: OperatorStep) -> tuple[float, float]:
        seconds = operator_seconds(program, step, cluster.device, dtype, COMPILED, products)
        return seconds.forward, seconds.backward

    def collective_s(kind: str, axes: Axes, size: int) -> float:
        return collective_time_s(kind, size, group_shape(order, axes, cluster), cluster)

    @cache
    def parameter_s(axes: Axes) -> float:
        once_s = after_s_per_parameter(axes, strategy.zero, training.precision, mesh, cluster)
        return accumulation_s_per_parameter(training.precision, cluster.device) + once_s / count

    return Prices(operator_s, collective_s, parameter_s, ())


def _loads(problem: Problem, strategy: Strategy) -> tuple[RankLoad, ...]:
    count, parts = strategy.num_microbatches(problem.training.global_batch_size), strategy_parts(*problem[:3], strategy)
    return tuple(rank_load(strategy, parts, count, rank) for rank in telling_ranks(strategy, parts, count))


def _state(problem: Problem, strategy: Strategy, mesh: Mesh) -> State:
    parts = strategy_parts(*problem[:3], strategy)
    return parts_state(parts, strategy.zero, problem.training.precision, mesh, problem.cluster)


def _rows(problem: Problem, strategy: Strategy, mesh: Mesh) -> tuple[MemoryRow, ...]:
    """One for each kind of pipeline rank, as cost/memory.py counts them."""
    return tuple(_row(problem, strategy, mesh, load) for load in _loads(problem, strategy))


def _row(problem: Problem, strategy: Strategy, mesh: Mesh, load: RankLoad) -> MemoryRow:
    @cache
    def state_bytes(axes: Axes, matrix: bool, learned: bool) -> float:
        element, precision = {axes: 1}, problem.training.precision
        is_orthogonal = matrix and problem.training.optimizer == MUON  # of a block, whose matrices products read
        orthogonal: MatricesByAxes = {(axes, ()): MatrixWork(1)} if is_orthogonal else {}
        one = Contents(element, element if matrix else {}, orthogonal=orthogonal)
        if not learned:
            one = Contents(frozen_matrices=element) if matrix else Contents(frozen=1)
        contents = ModelContents({0: one}, Contents())
        block = mesh_state(contents, 1.0, strategy.zero, precision, mesh, problem.cluster).block
        return float(sum(living_bytes(load.num_blocks, load.most_blocks * block.handed_over, block, (), precision)[:3]))

    return MemoryRow(state_bytes, float(load.in_flight * load.most_blocks), 1.0, 1.0, inf)


def _with_room(
    problem: Problem, strategy: Strategy, mesh: Mesh, before: OperatorSolution, reserve_bytes: float
) -> tuple[MemoryRow, ...]:
    """The rows with what the rest of each rank leaves of its memory."""
    precision, device = problem.training.precision, problem.cluster.device
    rows, state = [], _state(problem, strategy, mesh)
    known = zip(_loads(problem, strategy), _rows(problem, strategy, mesh), before.price.memory_bytes, strict=True)
    for load, row, decided_bytes in known:
        total = sum(memory_values(load, state, precision, device))
        rows.append(
            replace(row, capacity_bytes=max(1.0, device.memory_bytes - (total - decided_bytes) - reserve_bytes))
        )
    return tuple(rows)
