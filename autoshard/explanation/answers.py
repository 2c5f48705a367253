"""One answer each: where a choice flips, what another tp, more nodes or another instance would bring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from autoshard.backends.rules import Problem, check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.explanation.doubt import doubt
from autoshard.explanation.flips import Question, flip, winner
from autoshard.explanation.page import percent
from autoshard.explanation.quantities import Quantity
from autoshard.layout.strategy import Strategy
from autoshard.planner.cached_search import Searches
from autoshard.plans.differences import loses, term_differences
from autoshard.plans.names import changed_words, short_name
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate, Pins
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.units import format_bytes, format_seconds

BILLION, HOUR_S = 1e9, 3600.0
MOST_DOUBLINGS = 3
"""Of the nodes of another instance type where a layout does not fit on as many as have the same peak."""


@dataclass(frozen=True)
class FlipRow:
    """One quantity turned up (or down). value: where the choice flips; None: it does not up to `looked_at`, SI.
    holds: up to where it is known to hold; closer to `value` than that the search was not asked.

    change: what differs in the layout that wins from there, in words; '' where none does. because: why it wins there.
    """

    quantity: str
    more: bool
    now: float
    looked_at: float
    value: float | None
    holds: float
    now_text: str
    looked_at_text: str
    value_text: str
    holds_text: str
    layout: str
    change: str
    because: str


@dataclass(frozen=True)
class DegreeRow:
    """The best layout with another tp. slower: its step time over the plan's, minus 1; between slower_low and
    slower_high with 90 % probability. refusal: why there is none; then legal says that it is memory and no rule."""

    tp: int
    layout: str
    step_time_s: float
    slower: float
    slower_low: float
    slower_high: float
    toss_up: bool
    loses: str
    refusal: str
    legal: bool = True


@dataclass(frozen=True)
class SizeRow:
    """The best layout on so many nodes. more: tokens a second over those of the plan, minus 1. of_linear: those of each
    node over those of the plan's.

    usd_per_billion_tokens: None where the price is not known. refusal: why there is none; numbers are then 0.
    """

    nodes: int
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    more: float
    of_linear: float
    usd_per_billion_tokens: float | None
    layout: str
    refusal: str


@dataclass(frozen=True)
class PriceRow:
    """Another instance type with about as many FLOP/s. break_even_usd: price of one of its nodes and hours from which
    on it is cheaper for a token, with the plan's at its own price; own_break_even_usd: of the plan's nodes, with the
    other at its own price, None where that is not known."""

    instance: str
    nodes: int
    step_time_s: float
    price_usd: float | None
    break_even_usd: float
    own_break_even_usd: float | None
    layout: str


@dataclass(frozen=True)
class Sensitivity:
    """agrees: today's search chooses the plan's layout; else `now` is what it chooses and there are no flips;
    None where there was no time to see. unanswered: what there was no time for, or not yet.

    price_usd: of a node and hour; usd_per_billion_tokens: at that price. Both None where the price is not known.
    """

    agrees: bool | None
    now: str
    degrees: tuple[DegreeRow, ...]
    flips: tuple[FlipRow, ...]
    sizes: tuple[SizeRow, ...]
    price_usd: float | None
    usd_per_billion_tokens: float | None
    prices: tuple[PriceRow, ...]
    unanswered: tuple[str, ...] = ()


def problem_of(plan: Plan) -> Problem:
    """What it is the plan for."""
    return Problem(plan.model, plan.training, plan.cluster, plan.backend)


def degree_row(searches: Searches, plan: Plan, tp: int, fit_probability: float) -> DegreeRow:
    """The best layout with another tp, whatever else the plan pins."""
    chosen = Candidate(plan.strategy, plan.estimate)
    try:
        best = searches.best(problem_of(plan), Pins(tp=tp), fit_probability)
    except AutoshardError as error:
        # the page says of which model and cluster; that no larger one would do is no news of this one
        told = (str(error).partition(": ")[2] or str(error)).partition("; no cluster of")[0]
        return DegreeRow(tp, "", 0.0, 0.0, 0.0, 0.0, False, "", told, isinstance(error, NoLayoutFits))
    seconds, sure = best.estimate.step_time_s, doubt(plan.cluster, chosen, best)
    slower = (seconds / plan.estimate.step_time_s - 1, sure.low - 1, sure.high - 1)
    lost = loses(plan.estimate, best.estimate)
    return DegreeRow(tp, short_name(best.strategy), seconds, *slower, sure.toss_up, lost, "")


def flip_row(searches: Searches, plan: Plan, quantity: Quantity, furthest: float, sure: float) -> FlipRow:
    """Where the choice flips between now and `furthest` times as much of the quantity."""
    problem, chosen = problem_of(plan), plan.strategy
    found = flip(searches, Question(problem, plan.pins, sure), chosen, quantity, furthest)
    looked_at = quantity.now * furthest
    value = None if found is None else quantity.now * found.factor
    holds = looked_at if found is None else quantity.now * found.holds
    layout = change = because = ""
    if found is not None and found.to is None:
        because = found.refusal
    elif found is not None and found.to is not None:
        layout, change = short_name(found.to.strategy), changed_words(chosen, found.to.strategy)
        because = _because(quantity.scaled(problem, found.factor), chosen, found.to, sure)
    return FlipRow(
        quantity.name,
        furthest > 1,
        quantity.now,
        looked_at,
        value,
        holds,
        quantity.shown(quantity.now),
        quantity.shown(looked_at),
        "" if value is None else quantity.shown(value),
        quantity.shown(holds),
        layout,
        change,
        because,
    )


def _because(problem: Problem, chosen: Strategy, to: Candidate, sure: float) -> str:
    """What speaks against the choice where it is no longer the best: memory, a rule, or the terms that it loses by.

    sure: with what probability a layout is to fit.
    """
    try:
        check_strategy(problem.model, problem.training, problem.cluster, problem.backend, chosen)
    except AutoshardError as rule:
        return f"the layout above is not legal there: {rule}"
    ours = estimate(problem.model, problem.training, problem.cluster, chosen)
    if not ours.fits:
        over = ours.fullest.total_bytes - ours.memory_capacity_bytes
        return f"the layout above does not fit there: {format_bytes(over)} too much"
    if ours.fits_probability < min(sure, to.estimate.fits_probability):
        return f"the layout above fits there with {percent(ours.fits_probability)} only"
    lost = [f"{format_seconds(seconds)} {name}" for name, seconds in term_differences(to.estimate, ours) if seconds > 0]
    return f"saves {', '.join(lost[:2])}" if lost else "a little in every term"


def usd_per_billion_tokens(cluster: Cluster, tokens_per_s: float) -> float | None:
    """None where the price of a node is not known."""
    if cluster.price_per_node_hour_usd is None:
        return None
    return BILLION / tokens_per_s / HOUR_S * cluster.nodes * cluster.price_per_node_hour_usd


def size_row(searches: Searches, plan: Plan, nodes: int, sure: float) -> SizeRow:
    """The best layout on so many nodes, with the plan's pins but dp; on as many as the plan has, the plan itself."""
    cluster = replace(plan.cluster, nodes=nodes)
    if nodes == plan.cluster.nodes:
        return _size(plan, cluster, Candidate(plan.strategy, plan.estimate))
    pins = replace(plan.pins, dp=None)
    best, refusal = winner(searches, problem_of(plan)._replace(cluster=cluster), pins, sure)
    if best is None:
        return SizeRow(nodes, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, "", refusal)
    return _size(plan, cluster, best)


def _size(plan: Plan, cluster: Cluster, best: Candidate) -> SizeRow:
    found, nodes = best.estimate, cluster.nodes
    times = (found.step_time_s, found.step_time_low_s, found.step_time_high_s)
    faster = found.tokens_per_s / plan.estimate.tokens_per_s
    cost = usd_per_billion_tokens(cluster, found.tokens_per_s)
    linear = faster * plan.cluster.nodes / nodes
    return SizeRow(nodes, *times, found.tokens_per_s, faster - 1, linear, cost, short_name(best.strategy), "")


def price_row(searches: Searches, plan: Plan, instance: str) -> PriceRow | None:
    """What another instance of the same maker would have to cost, with as many nodes as come nearest to the same peak.

    None for one of another maker, and where nothing fits on up to 2^MOST_DOUBLINGS times as many.
    """
    own, price, other = plan.cluster, plan.cluster.price_per_node_hour_usd, load_cluster(instance, 1)
    if price is None or not other.platform.is_trainium:
        return None
    dtype = plan.training.precision.compute_dtype
    peak = own.world_size * own.device.peak_flops_per_s(dtype)
    nodes = 2 ** max(0, round(log2(peak / other.devices_per_node / other.device.peak_flops_per_s(dtype))))
    found = _offer(searches, plan, other, nodes)
    return None if found is None else _price(plan, price, *found)


def _offer(searches: Searches, plan: Plan, one_node: Cluster, nodes: int) -> tuple[Cluster, Candidate] | None:
    for doubling in range(MOST_DOUBLINGS + 1):
        cluster = replace(one_node, nodes=nodes * 2**doubling)
        best, _ = winner(searches, problem_of(plan)._replace(cluster=cluster), Pins())
        if best is not None:
            return cluster, best
    return None


def _price(plan: Plan, price: float, cluster: Cluster, best: Candidate) -> PriceRow:
    own_node_tokens = plan.estimate.tokens_per_s / plan.cluster.nodes
    node_tokens = best.estimate.tokens_per_s / cluster.nodes
    theirs = cluster.price_per_node_hour_usd
    return PriceRow(
        cluster.instance,
        cluster.nodes,
        best.estimate.step_time_s,
        theirs,
        price * node_tokens / own_node_tokens,
        None if theirs is None else theirs * own_node_tokens / node_tokens,
        short_name(best.strategy),
    )
