"""A planned step on the clock of the cost model: what every pipeline rank does, from when to when."""

from __future__ import annotations

from autoshard.cost.memory import MEMORY_TERMS, memory_values
from autoshard.cost.rank_load import rank_load, telling_ranks
from autoshard.cost.stage import Parts, strategy_parts
from autoshard.cost.step import accumulation_s_per_parameter, busiest_rank, pipeline_work
from autoshard.cost.zero_sharding import State, parts_state
from autoshard.layout.sharding import differing
from autoshard.plans.plan import Plan, operator_choices
from autoshard.schedules import Order, Timeline, actions, simulate


def planned_timeline(plan: Plan) -> tuple[tuple[Order, ...], Timeline]:
    """The plan's actions by pipeline rank, on the clock of its own estimate. What follows the pipeline is not in it."""
    strategy, count, precision = plan.strategy, plan.num_microbatches, plan.training.precision
    parts = _parts(plan)
    work = pipeline_work(strategy, parts, _state(plan, parts), count, precision, plan.mesh, plan.cluster)
    orders = actions(strategy.schedule, strategy.pp, count, strategy.num_virtual_stages)
    return orders, simulate(orders, work.forward_s, work.backward_s, work.transfer_s, work.weight_s)


def planned_waits_s(plan: Plan) -> tuple[float, float]:
    """(gathering, scattering): what the terms of the plan's estimate for parameter all-gather and gradient
    reduce-scatter have inside the pipeline, under ZeRO-2 and -3."""
    strategy, parts, count = plan.strategy, _parts(plan), plan.num_microbatches
    loads = tuple(rank_load(strategy, parts, count, rank) for rank in telling_ranks(strategy, parts, count))
    accumulation_s = accumulation_s_per_parameter(plan.training.precision, plan.cluster.device)
    busiest = busiest_rank(loads, _state(plan, parts), count, accumulation_s)
    return busiest.gathering_s, busiest.scattering_s


def memory_by_operators(plan: Plan, pipeline_rank: int) -> dict[str, float]:
    """MEMORY_TERMS of a pipeline rank whose backward adds the gradient of each operator's weights to its sum when it is
    there, as the runtime on CPU processes does; the plan's own, where its cluster does too."""
    if plan.cluster.hands_over == "operators":
        return {term.name: term.value for term in plan.estimate.memory[pipeline_rank].terms}
    parts, precision = _parts(plan), plan.training.precision
    load = rank_load(plan.strategy, parts, plan.num_microbatches, pipeline_rank)
    state = parts_state(parts, plan.strategy.zero, precision, plan.mesh, plan.cluster, hands_over="operators")
    return dict(zip(MEMORY_TERMS, memory_values(load, state, precision, plan.cluster.device), strict=True))


def _parts(plan: Plan) -> tuple[Parts, ...]:
    """The parts of each virtual stage, with the plan's choices for each operator."""
    rule = operator_choices(plan.model, plan.training, plan.cluster, plan.strategy)
    others = differing(plan.operators, rule)
    return strategy_parts(plan.model, plan.training, plan.cluster, plan.strategy, operators=others)


def _state(plan: Plan, parts: tuple[Parts, ...]) -> State:
    return parts_state(parts, plan.strategy.zero, plan.training.precision, plan.mesh, plan.cluster)
