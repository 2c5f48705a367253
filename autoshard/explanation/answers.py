"""Answers about a plan, one search each: where the choice flips, what another tp, more nodes or other instances
bring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from autoshard.backends.registry import BACKENDS, as_run_by
from autoshard.backends.rules import Problem, check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.explanation.doubt import doubt
from autoshard.explanation.flips import Question, flip, winner
from autoshard.explanation.held_against import held_against
from autoshard.explanation.quantities import Quantity
from autoshard.layout.strategy import Strategy
from autoshard.planner.cached_search import Searches, Start
from autoshard.planner.choice import passed_over
from autoshard.planner.no_answer import NothingFits
from autoshard.plans.differences import loses, term_differences
from autoshard.plans.names import changed_words, short_name
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate, Pins
from autoshard.precedents.runs import beaten_path
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.sdk import is_before
from autoshard.units import format_bytes, format_seconds, percent, slower_than

MOST_DOUBLINGS = 3
"""Another instance type is tried with as many nodes as reach the plan's peak FLOP/s. Where nothing fits, the number of
nodes is doubled up to this many times."""


@dataclass(frozen=True)
class FlipRow:
    """The answer for one quantity that is turned up (or down, where `more` is False).

    now, looked_at, value, holds: values of the quantity, SI. The search looked from `now` to `looked_at`. The choice
    flips at `value`, None where it does not, and is known to hold up to `holds`; between `holds` and `value` nothing
    was searched. now_text and so on: the same values in people's units. layout: the layout that wins from `value` on.
    change: what differs in it from the chosen one, in words. because: why it wins there, or why no layout does. at: the
    values of a whole number that were looked at, as text, and no other ones were; () where it is none.
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
    at: tuple[str, ...] = ()


@dataclass(frozen=True)
class DegreeRow:
    """The fastest layout with another tp, against the plan's.

    step_time_s: its step time. slower: its step time over the plan's, minus 1; with 90 % probability this lies between
    slower_low and slower_high. loses: the terms in which it is slower. refusal: why there is no such layout, '' where
    there is one. legal: True if only memory stands in the way, False if a rule does. but: what the planner holds
    against it beside its time, '' where nothing.
    """

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
    but: str = ""


@dataclass(frozen=True)
class SizeRow:
    """The fastest layout on a number of nodes.

    more: its tokens/s over the plan's, minus 1. of_linear: tokens/s of each node over tokens/s of each of the plan's
    nodes. usd_per_billion_tokens: None where the price of a node is not known. refusal: why no layout is possible, and
    then the numbers are 0; '' where there is one.
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
    """The best layout on another instance type, on about as many peak FLOP/s as the plan has.

    price_usd: of one of its nodes for an hour, None where it is not known. break_even_usd: the price of one of its
    nodes for an hour at which a token costs the same on both, the plan's nodes being at their own price.
    own_break_even_usd: the same for a node of the plan, the other instance being at its own price; None where that is
    not known.
    """

    instance: str
    nodes: int
    step_time_s: float
    price_usd: float | None
    break_even_usd: float
    own_break_even_usd: float | None
    layout: str


@dataclass(frozen=True)
class Sensitivity:
    """All answers on what would change a plan's choice.

    agrees: whether today's search chooses the plan's layout; where it does not, `now` is what it chooses and there are
    no flips; None where there was no time to see. unanswered: the subjects for which there was no time, or not yet.
    tried: how many layouts were searched again where a quantity changes, the most promising ones of today, but for the
    most memory, other batches and other sequence lengths; None where all were. pinned: what the plan was given, in the
    words of a layout; `degrees` and `prices` are searched without it.
    price_usd: of a node for an hour. usd_per_billion_tokens: cost at that price. Both are None where the price is not
    known.
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
    tried: int | None = None
    pinned: tuple[str, ...] = ()


def problem_of(plan: Plan) -> Problem:
    """The problem that the plan solves: model, training, cluster and backend."""
    return Problem(plan.model, plan.training, plan.cluster, plan.backend)


def under_rules_of(plan: Plan, pins: Pins) -> Pins:
    """The pins for a search under the rules of the plan's: whether it keeps to the beaten path, and whether it looks at
    etp and dp_replicate, as it also does where the plan's layout has one."""
    rules, strategy = plan.pins, plan.strategy
    return replace(
        pins,
        beaten_path=rules.beaten_path,
        searches_replicas=rules.searches_replicas or strategy.dp_replicate > 1,
        searches_etp=rules.searches_etp or strategy.etp is not None,
    )


def degree_row(searches: Searches, plan: Plan, tp: int, fit_probability: float) -> DegreeRow:
    """The fastest layout with the given tp that fits with fit_probability. Of the plan's other pins only the rules of
    its search hold here."""
    chosen, problem = Candidate(plan.strategy, plan.estimate), problem_of(plan)
    try:
        best = searches.fastest(problem, under_rules_of(plan, Pins(tp=tp)), fit_probability)
        searches.remember(problem, best.strategy)
    except AutoshardError as error:
        # the page says of which model and cluster; that no larger one would do is no news of this one
        text = error.without_reasons if isinstance(error, NothingFits) else str(error)
        told = text.partition(": ")[2] if text.startswith("no layout ") and ": " in text else text
        return DegreeRow(tp, "", 0.0, 0.0, 0.0, 0.0, False, "", told, isinstance(error, NoLayoutFits))
    seconds, sure = best.estimate.step_time_s, doubt(plan.cluster, chosen, best)
    slower = (seconds / plan.estimate.step_time_s - 1, sure.low - 1, sure.high - 1)
    lost = loses(plan.estimate, best.estimate)
    but = ", ".join(one.words for one in held_against(problem, best.strategy))
    return DegreeRow(tp, short_name(best.strategy), seconds, *slower, sure.toss_up, lost, "", but=but)


def flip_row(
    searches: Searches, plan: Plan, quantity: Quantity, furthest: float, sure: float, start: Start | None = None
) -> FlipRow:
    """The answer to where the choice flips between now and `furthest` times the quantity. sure: probability with which
    a layout must fit. start: what is known of the plan's problem; by default what `searches` knows."""
    problem, chosen = problem_of(plan), plan.strategy
    if start is not None:
        searches = searches.begun(problem, plan.pins, start)
    asked = Question(problem, plan.pins, sure)
    if not quantity.needs_all(furthest):
        asked = asked._replace(among=searches.promising(problem, plan.pins))
    first = flip(searches, asked, chosen, quantity, furthest)
    looked_at = quantity.value(furthest)
    value = None if first is None else quantity.value(first.factor)
    holds = looked_at if first is None else quantity.value(first.holds)
    layout = change = because = ""
    if first is not None and first.to is None:
        because = first.refusal
    elif first is not None and first.to is not None:
        layout, change = short_name(first.to.strategy), changed_words(chosen, first.to.strategy)
        because = _because(quantity.scaled(problem, first.factor), plan.pins, chosen, first.to, sure)
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
        tuple(quantity.shown(quantity.value(factor)) for factor in quantity.steps(furthest)) if quantity.whole else (),
    )


def _because(problem: Problem, pins: Pins, chosen: Strategy, to: Candidate, sure: float) -> str:
    """Why the chosen layout is no longer taken: it lacks memory, breaks a rule, loses time in these terms, or is passed
    over though it is faster.

    problem: with the quantity scaled. to: the layout that wins. sure: probability with which a layout must fit.
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
        return f"the layout above fits there with only {percent(ours.fits_probability)} probability"
    ratio = to.estimate.step_time_s / ours.step_time_s
    if ratio > 1:
        return f"there {slower_than(ratio)} the layout above, {_merit(problem, pins, chosen, to.strategy)}"
    lost = [f"{format_seconds(seconds)} {name}" for name, seconds in term_differences(to.estimate, ours) if seconds > 0]
    return f"saves {', '.join(lost[:2])}" if lost else "a little in every term"


def _merit(problem: Problem, pins: Pins, chosen: Strategy, to: Strategy) -> str:
    """The merit of the layout that wins for which it is taken, though it is slower than the chosen one."""
    path, graphs = passed_over(problem, pins)
    if graphs is not None and graphs.refuses(chosen) and not graphs.refuses(to):
        return "but it is expected to compile, and that one is not"
    if path is not None and path.known(to) and (unknown := path.unknown(chosen)):
        return f"but known to run: of that one nobody is known to have run {', '.join(unknown)}"
    return "less than the model can tell, but simpler"


def size_row(searches: Searches, plan: Plan, nodes: int, sure: float) -> SizeRow:
    """The fastest layout on so many nodes under the plan's pins, except dp. On as many nodes as the plan has, the plan
    itself."""
    cluster = plan.cluster.with_nodes(nodes)
    if nodes == plan.cluster.nodes:
        return _size(plan, cluster, Candidate(plan.strategy, plan.estimate))
    pins = replace(plan.pins, dp=None)
    best, refusal = winner(searches, problem_of(plan)._replace(cluster=cluster), pins, sure)
    if best is None:
        return SizeRow(nodes, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, "", refusal)
    return _size(plan, cluster, best)


def _size(plan: Plan, cluster: Cluster, best: Candidate) -> SizeRow:
    estimate, nodes = best.estimate, cluster.nodes
    times = (estimate.step_time_s, estimate.step_time_low_s, estimate.step_time_high_s)
    faster = estimate.tokens_per_s / plan.estimate.tokens_per_s
    cost = cluster.usd_per_billion_tokens(estimate.tokens_per_s)
    linear = faster * plan.cluster.nodes / nodes
    return SizeRow(nodes, *times, estimate.tokens_per_s, faster - 1, linear, cost, short_name(best.strategy), "")


def price_row(searches: Searches, plan: Plan, instance: str, sure: float) -> PriceRow | None:
    """The break-even prices of another instance type. It gets the number of nodes that comes nearest to the plan's peak
    FLOP/s, and the fastest layout there that fits with probability `sure`. Of the plan's pins only the rules of its
    search hold, and the beaten path only where there is one.

    It has the plan's release, but for native PyTorch beside a plan that cannot have it: there the newest.

    None where the plan's price is not known, for instances of another maker, those that this release does not run on
    and those without the plan's products, and where nothing fits on up to 2^MOST_DOUBLINGS times as many nodes.
    """
    cluster, price = plan.cluster, plan.cluster.price_per_node_hour_usd
    other = load_cluster(instance, 1)
    if price is None or not other.platform.is_trainium:
        return None
    is_native = BACKENDS[plan.backend].runs_stacks and bool(other.platform.stacks)
    release = None if is_native and cluster.stack is None else cluster.sdk  # what is not native is of other releases
    if release is not None and is_before(release, other.platform.first_release):
        return None
    other = as_run_by(load_cluster(instance, 1, sdk=release), plan.backend)
    dtype = plan.training.precision.fastest_dtype
    if dtype not in dict(other.device.flops_per_s):
        return None
    peak = cluster.world_size * cluster.device.peak_flops_per_s(dtype)
    nodes = 2 ** max(0, round(log2(peak / other.devices_per_node / other.device.peak_flops_per_s(dtype))))
    offer = _offer(searches, plan, other, nodes, sure)
    return None if offer is None else _price(plan, price, *offer)


def _offer(
    searches: Searches, plan: Plan, one_node: Cluster, nodes: int, sure: float
) -> tuple[Cluster, Candidate] | None:
    pins = under_rules_of(plan, Pins())
    if beaten_path(one_node.platform.name, plan.backend) is None:
        pins = replace(pins, beaten_path=False)
    counts = (nodes * 2**doubling for doubling in range(MOST_DOUBLINGS + 1))
    for count in filter(one_node.can_have, counts):
        cluster = replace(one_node, nodes=count)
        best = searches.find(problem_of(plan)._replace(cluster=cluster), pins, sure)
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
