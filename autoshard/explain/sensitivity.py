"""What would change the choice, and what more nodes would bring: every answer comes from another search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log2

from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.explain.beside import doubt
from autoshard.explain.flips import Flip, flip, same_layout, winner
from autoshard.explain.names import layout_name
from autoshard.explain.quantities import Quantity, quantities
from autoshard.layout.compare import loses, term_differences
from autoshard.layout.plan import Plan
from autoshard.layout.strategy import Strategy
from autoshard.search import Candidate, Pins, check_strategy, search
from autoshard.search.rules import Problem
from autoshard.spec.cluster import Cluster, instances, load_cluster
from autoshard.units import format_bytes, format_seconds

BILLION, HOUR_S = 1e9, 3600.0
MOST_DOUBLINGS = 3
"""Of the nodes of another instance type where a layout does not fit on as many as have the same peak."""
OnSearch = Callable[[str], None]


@dataclass(frozen=True)
class FlipRow:
    """One quantity turned up (or down). value: where the choice flips; None: it does not up to `looked_at`, SI.

    change: what differs in the layout that wins from there, in words; '' where none does. because: why it wins there.
    """

    quantity: str
    more: bool
    now: float
    looked_at: float
    value: float | None
    now_text: str
    looked_at_text: str
    value_text: str
    layout: str
    change: str
    because: str


@dataclass(frozen=True)
class DegreeRow:
    """The best layout with another tp. slower: its step time over the plan's, minus 1. refusal: why there is none."""

    tp: int
    layout: str
    step_time_s: float
    slower: float
    toss_up: bool
    loses: str
    refusal: str


@dataclass(frozen=True)
class SizeRow:
    """The best layout on so many nodes. of_linear: its tokens a second for each node over those of the plan.

    usd_per_billion_tokens: None where the price is not known. refusal: why there is none; numbers are then 0.
    """

    nodes: int
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
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
    """agrees: today's search chooses the plan's layout; else `now` is what it chooses and there are no flips.

    price_usd: of a node and hour; usd_per_billion_tokens: at that price. Both None where the price is not known.
    """

    agrees: bool
    now: str
    degrees: tuple[DegreeRow, ...]
    flips: tuple[FlipRow, ...]
    sizes: tuple[SizeRow, ...]
    price_usd: float | None
    usd_per_billion_tokens: float | None
    prices: tuple[PriceRow, ...]


def sensitivity(plan: Plan, on_search: OnSearch = lambda what: None) -> Sensitivity | None:
    """None for a plan that was not searched: there is no choice to flip. on_search: told what is looked at."""
    if plan.search is None:
        return None
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    on_search("the choice itself")
    best, refusal = winner(problem, plan.pins)
    agrees = best is not None and same_layout(best.strategy, plan.strategy)
    rows = tuple(_flips(problem, plan.pins, plan.strategy, on_search)) if agrees else ()
    price = plan.cluster.price_per_node_hour_usd
    return Sensitivity(
        agrees,
        refusal if best is None else layout_name(best.strategy),
        tuple(_degrees(plan, problem, on_search)),
        rows,
        tuple(_sizes(plan, on_search)),
        price,
        _usd(plan.cluster, plan.estimate.tokens_per_s),
        tuple(_prices(plan, on_search)),
    )


def _degrees(plan: Plan, problem: Problem, on_search: OnSearch) -> Iterator[DegreeRow]:
    """Every other power of two up to the devices of a node that the rules let through, or that does not fit."""
    chosen = Candidate(plan.strategy, plan.estimate)
    for tp in (2**power for power in range(plan.cluster.devices_per_node.bit_length())):
        if tp == plan.strategy.tp or plan.cluster.instance == "cpu":
            continue
        on_search(f"tp={tp}")
        try:
            best = search(*problem[:3], Pins(tp=tp), problem.backend, top=0).best
        except NoLayoutFits as error:
            yield DegreeRow(tp, "", 0.0, 0.0, False, "", str(error))
            continue
        except AutoshardError:
            continue
        seconds = best.estimate.step_time_s
        either = doubt(plan.cluster, chosen, best).toss_up
        lost = loses(plan.estimate, best.estimate)
        yield DegreeRow(
            tp, layout_name(best.strategy), seconds, seconds / plan.estimate.step_time_s - 1, either, lost, ""
        )


def _flips(problem: Problem, pins: Pins, chosen: Strategy, on_search: OnSearch) -> Iterator[FlipRow]:
    for quantity in quantities(problem):
        on_search(quantity.name)
        for furthest in (quantity.furthest, 1 / quantity.furthest):
            yield _row(problem, chosen, quantity, furthest, flip(problem, pins, chosen, quantity, furthest))


def _row(problem: Problem, chosen: Strategy, quantity: Quantity, furthest: float, found: Flip | None) -> FlipRow:
    looked_at = quantity.now * furthest
    value = None if found is None else quantity.now * found.factor
    layout = change = because = ""
    if found is not None and found.to is None:
        because = found.refusal
    elif found is not None and found.to is not None:
        layout, change = layout_name(found.to.strategy), changed(chosen, found.to.strategy)
        because = _because(quantity.scaled(problem, found.factor), chosen, found.to)
    return FlipRow(
        quantity.name,
        furthest > 1,
        quantity.now,
        looked_at,
        value,
        quantity.shown(quantity.now),
        quantity.shown(looked_at),
        "" if value is None else quantity.shown(value),
        layout,
        change,
        because,
    )


def _because(problem: Problem, chosen: Strategy, to: Candidate) -> str:
    """What speaks against the choice where it is no longer the best: memory, a rule, or the terms that it loses by."""
    try:
        check_strategy(problem.model, problem.training, problem.cluster, problem.backend, chosen)
    except AutoshardError as rule:
        return f"the layout above is not legal there: {rule}"
    ours = estimate(problem.model, problem.training, problem.cluster, chosen)
    if not ours.fits:
        over = ours.fullest.total_bytes - ours.memory_capacity_bytes
        return f"the layout above does not fit there: {format_bytes(over)} too much"
    lost = [f"{format_seconds(seconds)} {name}" for name, seconds in term_differences(to.estimate, ours) if seconds > 0]
    return f"saves {', '.join(lost[:2])}" if lost else "a little in every term"


def changed(one: Strategy, other: Strategy) -> str:
    """'tp=32 pp=4 dp=4': the words of `other`'s name that are not in `one`'s."""
    ours, theirs = layout_name(one).split(" "), layout_name(other).split(" ")
    words = [word for word in theirs if word not in ours]
    gone = [
        word.partition("=")[0] for word in ours if word.partition("=")[0] not in [w.partition("=")[0] for w in theirs]
    ]
    return " ".join([*words, *(f"no {name}" for name in gone)])


def _usd(cluster: Cluster, tokens_per_s: float) -> float | None:
    if cluster.price_per_node_hour_usd is None:
        return None
    return BILLION / tokens_per_s / HOUR_S * cluster.nodes * cluster.price_per_node_hour_usd


def _sizes(plan: Plan, on_search: OnSearch) -> Iterator[SizeRow]:
    """One node more, and twice as many."""
    if plan.cluster.instance == "cpu":
        return
    for nodes in dict.fromkeys((plan.cluster.nodes + 1, 2 * plan.cluster.nodes)):
        on_search(f"{nodes:,} nodes")
        cluster = replace(plan.cluster, nodes=nodes)
        pins = replace(plan.pins, dp=None)
        best, refusal = winner(Problem(plan.model, plan.training, cluster, plan.backend), pins)
        if best is None:
            yield SizeRow(nodes, 0.0, 0.0, 0.0, 0.0, 0.0, None, "", refusal)
            continue
        found = best.estimate
        linear = found.tokens_per_s / nodes / (plan.estimate.tokens_per_s / plan.cluster.nodes)
        times = (found.step_time_s, found.step_time_low_s, found.step_time_high_s)
        cost = _usd(cluster, found.tokens_per_s)
        yield SizeRow(nodes, *times, found.tokens_per_s, linear, cost, layout_name(best.strategy), "")


def _prices(plan: Plan, on_search: OnSearch) -> Iterator[PriceRow]:
    """Other instances with accelerators of the same maker, as many nodes as come nearest to the same peak."""
    own, price = plan.cluster, plan.cluster.price_per_node_hour_usd
    if price is None or own.layout_rules == "none":
        return
    dtype = plan.training.precision.compute_dtype
    peak = own.world_size * own.device.peak_flops_per_s(dtype)
    for instance in instances():
        other = load_cluster(instance, 1)
        if instance == own.instance or other.layout_rules == "none":
            continue
        on_search(instance)
        nodes = 2 ** max(0, round(log2(peak / other.devices_per_node / other.device.peak_flops_per_s(dtype))))
        found = _offer(plan, other, nodes)
        if found is not None:
            yield _price(plan, price, *found)


def _offer(plan: Plan, one_node: Cluster, nodes: int) -> tuple[Cluster, Candidate] | None:
    for doubling in range(MOST_DOUBLINGS + 1):
        cluster = replace(one_node, nodes=nodes * 2**doubling)
        best, _ = winner(Problem(plan.model, plan.training, cluster, plan.backend), Pins())
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
        layout_name(best.strategy),
    )
