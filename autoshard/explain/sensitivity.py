"""What would change the choice, and what more nodes would bring: every answer comes from another search."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
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
    size_row,
    usd_per_billion_tokens,
)
from autoshard.explain.flips import same_layout, winner
from autoshard.explain.names import layout_name
from autoshard.explain.quantities import quantities
from autoshard.layout.plan import Plan
from autoshard.search import Candidate
from autoshard.search.headroom import FIT_PROBABILITY
from autoshard.search.rules import Problem
from autoshard.spec.cluster import instances

ROUNDED = 1e-5
"""Plans keep six digits."""
OnAnswer = Callable[[int, int], None]
Question = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of answers.py and what it is asked."""


def sensitivity(plan: Plan, on_answer: OnAnswer = lambda done, total: None, processes: int = 1) -> Sensitivity | None:
    """None for a plan that was not searched: there is no choice to flip.

    on_answer: told (answers found, answers wanted). processes: 1 asks all in this one; more are spawned, so they import
    the caller's main module.
    """
    if plan.search is None:
        return None
    sure, best, refusal = _choice(plan)
    agrees = best is not None and same_layout(best.strategy, plan.strategy)
    wanted = [*_questions(plan, agrees, sure)]
    rows = [row for row in _answers(wanted, on_answer, processes) if row]
    return Sensitivity(
        agrees,
        refusal if best is None else layout_name(best.strategy),
        tuple(row for row in rows if isinstance(row, DegreeRow)),
        tuple(row for row in rows if isinstance(row, FlipRow)),
        tuple(row for row in rows if isinstance(row, SizeRow)),
        plan.cluster.price_per_node_hour_usd,
        usd_per_billion_tokens(plan.cluster, plan.estimate.tokens_per_s),
        tuple(row for row in rows if isinstance(row, PriceRow)),
    )


def _choice(plan: Plan) -> tuple[float, Candidate | None, str]:
    """(with what probability it was to fit, what the search takes, why nothing). A plan does not say what was asked of
    its search: as usual or, where that chooses another layout, as surely as this one fits."""
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    usual = (FIT_PROBABILITY, *winner(problem, plan.pins))
    fits = plan.estimate.fits_probability - ROUNDED
    if fits >= FIT_PROBABILITY or fits <= 0 or (usual[1] is not None and same_layout(usual[1].strategy, plan.strategy)):
        return usual
    other = (fits, *winner(problem, plan.pins, fits))
    return other if other[1] is not None and same_layout(other[1].strategy, plan.strategy) else usual


def _questions(plan: Plan, agrees: bool, sure: float) -> Iterator[Question]:
    """The longest first."""
    whole = plan
    plan = replace(plan, cluster=replace(plan.cluster))  # a hash that is kept is no other process's
    if agrees:
        for quantity in quantities(Problem(whole.model, whole.training, whole.cluster, whole.backend)):
            yield flip_row, (plan, quantity, quantity.furthest, sure)
            yield flip_row, (plan, quantity, 1 / quantity.furthest, sure)
    if plan.cluster.instance == "cpu":
        return
    for tp in (2**power for power in range(plan.cluster.devices_per_node.bit_length())):
        if tp != plan.strategy.tp:
            yield degree_row, (plan, tp, sure)
    for nodes in dict.fromkeys((plan.cluster.nodes + 1, 2 * plan.cluster.nodes)):
        yield size_row, (plan, nodes, sure)
    if plan.cluster.price_per_node_hour_usd is not None and plan.cluster.layout_rules != "none":
        yield from ((price_row, (plan, name)) for name in instances() if name != plan.cluster.instance)


def _answers(questions: list[Question], on_answer: OnAnswer, processes: int) -> Iterator[Any]:
    """In the order of the questions."""
    if processes == 1:
        for done, (function, asked) in enumerate(questions):
            on_answer(done, len(questions))
            yield function(*asked)
        return
    context = multiprocessing.get_context("spawn")
    quiet = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is this process's
    with ProcessPoolExecutor(processes, mp_context=context, initializer=signal.signal, initargs=quiet) as pool:
        try:
            waiting = [pool.submit(function, *asked) for function, asked in questions]
            for done, one in enumerate(waiting):
                on_answer(done, len(questions))
                yield one.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
