"""Asks what would change the choice and what more nodes would bring; every answer comes from another search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.explanation.answers import (
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
from autoshard.explanation.flips import same_layout, winner
from autoshard.explanation.own_constants import has_own_constants
from autoshard.explanation.quantities import quantities
from autoshard.planner.cached_search import OutOfTime, Searches
from autoshard.planner.priced import Clock
from autoshard.plans.names import short_name
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate
from autoshard.spec.cluster import instances, load_cluster

OnAnswer = Callable[[int, int], None]
OTHER_TP, FLIPS, MORE_NODES, INSTANCES = "another tp", "what flips the choice", "more nodes", "other instances"


class Question(NamedTuple):
    """One answer to look for. subject: what it is about; questions on one subject are asked in a row. function: the one
    of answers.py that answers. asked: its further arguments. apart: whether it needs no other search than the plan's
    own; such questions come last. They are about half of a torch plan's answers."""

    subject: str
    function: Callable[..., Any]
    asked: tuple[Any, ...]
    apart: bool = False


Elsewhere = Callable[[Plan], Callable[[], tuple[Any, ...]]]
"""Begins to ask the questions that are apart in another process; what it returns waits for the answers, as many as
there was time for."""


def sensitivity(plan: Plan, on_answer: OnAnswer = lambda done, total: None) -> Sensitivity | None:
    """All answers for a plan, however long it takes. None for a plan that was not searched, since there is no choice to
    flip.

    on_answer: called with (answers found, answers wanted).
    """
    return next(reversed([*answers_so_far(plan, Clock(inf), on_answer)]), None)


def answers_so_far(
    plan: Plan,
    clock: Clock,
    on_answer: OnAnswer = lambda done, total: None,
    elsewhere: Elsewhere | None = None,
) -> Iterator[Sensitivity]:
    """Yields what is known after each subject; the last value has all answers. Yields nothing for a plan that was not
    searched.

    When the clock has run out, nothing more is looked for, and `unanswered` of the last value says what is missing.
    elsewhere: asks the questions that are apart; by default they come last.
    """
    if plan.search is None:
        return
    searches, told = Searches(clock), elsewhere(plan) if elsewhere else None
    try:
        sure, best, refusal = _choice(searches, plan)
    except OutOfTime:
        yield _sensitivity(plan, None, "", [], (OTHER_TP, FLIPS, MORE_NODES, INSTANCES))
        return
    agrees = best is not None and same_layout(best.strategy, plan.strategy)
    wanted = [*_questions(plan, agrees, sure)]
    apart = [one for one in wanted if told and one.apart]
    promising = searches.promising(problem_of(plan), plan.pins) if agrees else None
    tried = None if promising is None else len(promising)
    now = refusal if best is None else short_name(best.strategy)
    here = wanted[: len(wanted) - len(apart)]
    rows, unanswered = list[Any](), tuple[str, ...]()
    for done, (subject, function, asked, _) in enumerate(here):
        on_answer(done, len(wanted))
        if done and here[done - 1].subject != subject:
            yield _sensitivity(plan, agrees, now, rows, _subjects(wanted[done:]), tried)
        try:
            rows.append(function(searches, plan, *asked))
        except OutOfTime:
            unanswered = _subjects(here[done:])
            break
    if told and apart:
        yield _sensitivity(plan, agrees, now, rows, (*unanswered, *_subjects(apart)), tried)
        on_answer(len(here), len(wanted))
        found = told()
        rows, unanswered = [*rows, *found], (*unanswered, *_subjects(apart[len(found) :]))
    yield _sensitivity(plan, agrees, now, rows, unanswered, tried)


def answer_apart(plan: Plan, limit_s: float) -> tuple[Any, ...]:
    """The answers to those questions about a plan that are apart, as many as are found in limit_s seconds."""
    searches, rows = Searches(Clock(limit_s)), list[Any]()
    with suppress(OutOfTime):
        sure, best, _ = _choice(searches, plan)  # instances that are like the plan's start from its search
        agrees = best is not None and same_layout(best.strategy, plan.strategy)
        for one in _questions(plan, agrees, sure):
            if one.apart:
                rows.append(one.function(searches, plan, *one.asked))
    return tuple(rows)


def _subjects(questions: Sequence[Question]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.subject for one in questions))


def _sensitivity(
    plan: Plan,
    agrees: bool | None,
    now: str,
    rows: Sequence[Any],
    unanswered: tuple[str, ...],
    tried: int | None = None,
) -> Sensitivity:
    known = instances()
    return Sensitivity(
        agrees,
        now,
        tuple(row for row in rows if isinstance(row, DegreeRow)),
        tuple(row for row in rows if isinstance(row, FlipRow)),
        tuple(row for row in rows if isinstance(row, SizeRow)),
        plan.cluster.price_per_node_hour_usd,
        usd_per_billion_tokens(plan.cluster, plan.estimate.tokens_per_s),
        tuple(sorted((row for row in rows if isinstance(row, PriceRow)), key=lambda row: known.index(row.instance))),
        unanswered,
        tried,
    )


def _choice(searches: Searches, plan: Plan) -> tuple[float, Candidate | None, str]:
    """(probability with which the layout must fit, what today's search takes, why it takes nothing)."""
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    return sure, *winner(searches, problem_of(plan), plan.pins, sure)


def _questions(plan: Plan, agrees: bool, sure: float) -> Iterator[Question]:
    """All questions in the order of the page. Problems with less memory come after those with more, whose prices they
    reuse."""
    on_cluster = plan.cluster.instance != "cpu"
    for tp in (2**power for power in range(plan.cluster.devices_per_node.bit_length())) if on_cluster else ():
        if tp != plan.strategy.tp:
            yield Question(OTHER_TP, degree_row, (tp, sure))
    for quantity in quantities(problem_of(plan)) if agrees else ():
        for furthest in (quantity.furthest, 1 / quantity.furthest):
            if quantity.value(furthest) != quantity.now:  # a batch of 1 cannot be halved
                yield Question(quantity.name, flip_row, (quantity, furthest, sure), quantity.takes_all)
    if not on_cluster:
        return
    counts = dict.fromkeys((plan.cluster.nodes, plan.cluster.nodes + 1, 2 * plan.cluster.nodes))
    for nodes in filter(plan.cluster.can_have, counts):
        yield Question(MORE_NODES, size_row, (nodes, sure), apart=True)
    is_priced = plan.cluster.price_per_node_hour_usd is not None and plan.cluster.platform.is_trainium
    if is_priced and not has_own_constants(plan):  # the others' constants are the packaged ones
        # a wide node's promising layouts serve the narrow ones of the same devices
        for name in sorted(instances(), key=lambda name: -load_cluster(name, 1).devices_per_node):
            if name != plan.cluster.instance:
                yield Question(INSTANCES, price_row, (name,), apart=True)
