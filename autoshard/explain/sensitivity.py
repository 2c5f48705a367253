"""What would change the choice, and what more nodes would bring: every answer comes from another search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from autoshard.explain.answers import (
    DegreeRow,
    FlipRow,
    PriceRow,
    Sensitivity,
    SizeRow,
    degree_row,
    flip_row,
    price_row,
    problem_of,
    size_row,
    usd_per_billion_tokens,
)
from autoshard.explain.flips import same_layout, winner
from autoshard.explain.names import short_name
from autoshard.explain.quantities import quantities
from autoshard.layout.plan import Plan
from autoshard.search import Candidate
from autoshard.search.again import Searches
from autoshard.search.headroom import FIT_PROBABILITY
from autoshard.spec.cluster import instances

OnAnswer = Callable[[int, int], None]
Question = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of answers.py and what it is asked."""


def sensitivity(plan: Plan, on_answer: OnAnswer = lambda done, total: None) -> Sensitivity | None:
    """None for a plan that was not searched: there is no choice to flip.

    on_answer: told (answers found, answers wanted).
    """
    if plan.search is None:
        return None
    searches = Searches()
    sure, best, refusal = _choice(searches, plan)
    agrees = best is not None and same_layout(best.strategy, plan.strategy)
    wanted, rows = [*_questions(plan, agrees, sure)], []
    for done, (function, asked) in enumerate(wanted):
        on_answer(done, len(wanted))
        rows.append(function(searches, plan, *asked))
    return Sensitivity(
        agrees,
        refusal if best is None else short_name(best.strategy),
        tuple(row for row in rows if isinstance(row, DegreeRow)),
        tuple(row for row in rows if isinstance(row, FlipRow)),
        tuple(row for row in rows if isinstance(row, SizeRow)),
        plan.cluster.price_per_node_hour_usd,
        usd_per_billion_tokens(plan.cluster, plan.estimate.tokens_per_s),
        tuple(row for row in rows if isinstance(row, PriceRow)),
    )


def _choice(searches: Searches, plan: Plan) -> tuple[float, Candidate | None, str]:
    """(with what probability it was to fit, what the search takes, why nothing)."""
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    return sure, *winner(searches, problem_of(plan), plan.pins, sure)


def _questions(plan: Plan, agrees: bool, sure: float) -> Iterator[Question]:
    """Problems of less memory are asked after those of more, whose prices they share."""
    if agrees:
        for quantity in quantities(problem_of(plan)):
            yield flip_row, (quantity, quantity.furthest, sure)
            yield flip_row, (quantity, 1 / quantity.furthest, sure)
    if plan.cluster.instance == "cpu":
        return
    for tp in (2**power for power in range(plan.cluster.devices_per_node.bit_length())):
        if tp != plan.strategy.tp:
            yield degree_row, (tp, sure)
    for nodes in dict.fromkeys((plan.cluster.nodes, plan.cluster.nodes + 1, 2 * plan.cluster.nodes)):
        yield size_row, (nodes, sure)
    if plan.cluster.price_per_node_hour_usd is not None and plan.cluster.layout_rules != "none":
        yield from ((price_row, (name,)) for name in instances() if name != plan.cluster.instance)
