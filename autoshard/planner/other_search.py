"""A search by other means than the exact one: another searcher, or by the prices of another cost model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from autoshard.backends.registry import ANYWHERE
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits, NoneFound
from autoshard.files.fields import show
from autoshard.planner.collector import uncollected
from autoshard.planner.cost_models import COST_MODELS
from autoshard.planner.no_answer import NothingFits
from autoshard.planner.rejections import MEMORY
from autoshard.planner.request import EVALUATIONS, PlanRequest
from autoshard.planner.searchers import SEARCHERS
from autoshard.plans.search_result import EXACT, OURS, Candidate, Pins
from autoshard.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.planner.search import Searched
    from autoshard.planner.space import Price, Space

NOT_PRICED = "not looked at by the searcher"
SEED = 0
"""The same request gives the same plan."""


def is_other(request: PlanRequest) -> bool:
    """Whether a request asks for another search than the exact one by autoshard's cost model."""
    return request.search != EXACT or request.cost_model != OURS


def check_search(request: PlanRequest) -> None:
    """Raise AutoshardError for an option of another search than the one that a request asks for."""
    if request.search == EXACT and request.evaluations is not None:
        raise AutoshardError(f"evaluations={request.evaluations} limits a search other than {EXACT}; give search, too")
    if is_other(request) and request.exhaustive:
        raise AutoshardError(f"exhaustive with {_other(request)}: it is of search={EXACT} by {OURS}'s cost model alone")


def _other(request: PlanRequest) -> str:
    return f"search={request.search}" if request.search != EXACT else f"cost_model={request.cost_model}"


@uncollected()
def other_search(problem: Problem, pins: Pins, request: PlanRequest) -> Searched:
    """The layout that the request's searcher takes, by the prices of its cost model; the estimate is autoshard's.

    Raises AutoshardError for what the exact search or a plug-in does not do, NoLayoutFits where nothing fits, NoneFound
    where only what was not priced does.
    """
    from autoshard.planner.search import Searched, search
    from autoshard.planner.space import Space

    if request.operators != "megatron":
        raise AutoshardError(
            f"operators={request.operators} with {_other(request)}: the solver goes with the exact search alone"
        )
    if pins.searches_etp:
        raise AutoshardError(f"etp=auto with {_other(request)}: only the exact search tries it; give etp a number")
    model = None if request.cost_model == OURS else partial(COST_MODELS.call, request.cost_model)
    space = Space(problem, pins, request.fit_probability, model, request.cost_model)
    if not len(space):
        try:
            return search(*problem[:3], pins, problem.backend)  # which says why there is none
        except NothingFits as error:
            chunks = _in_chunks(problem, pins, error.needed_bytes)
            raise (error.because(f"; in chunks, {chunks}, the logits need less") if chunks else error) from None
    limit_s = inf if request.time_limit is None else request.time_limit
    space.start((request.evaluations or EVALUATIONS) if request.search != EXACT else inf, limit_s)
    layout = space.fastest() if request.search == EXACT else searched(space, request.search)
    if layout is None or not space.price_of(layout).fits:
        raise _nothing_fits(space, request, layout)
    price, strategy = space.price_of(layout), space.strategy(layout)
    best = Candidate(strategy, estimate(*problem[:3], strategy))
    layouts = range(len(space)) if request.search == EXACT else sorted({*space.prices, layout})
    _count(space, layouts)
    return Searched(
        best,
        (),
        space.tally.considered,
        space.tally.fitting,
        space.tally.rejections(),
        _claim(space, request),
        tuple(_notes(best, price, request)),
        table_of_other=partial(space.table, layouts),
        searcher=EXACT if request.search == EXACT else SEARCHERS.said(request.search),
        cost_model=OURS if model is None else COST_MODELS.said(request.cost_model),
    )


def searched(space: Space, name: str, seed: int = SEED) -> int | None:
    """The layout that a searcher takes within the space's budget; None where it priced none.

    name: of SEARCHERS. Raises AutoshardError where it returns what is no layout.
    """
    from random import Random

    from autoshard.planner.space import BudgetSpent

    try:
        taken = SEARCHERS.call(name, space, Random(seed), let=BudgetSpent)  # noqa: S311  a seed that gives the same plan
    except BudgetSpent:
        taken = None
    if taken is None:
        return space.best
    layout = index(taken) if isinstance(taken, SupportsIndex) and not isinstance(taken, bool) else -1
    if not 0 <= layout < len(space):
        raise AutoshardError(f"searcher {name} returned {show(taken)}, which is no layout: 0 to {len(space) - 1:,}")
    return layout


def _count(space: Space, layouts: Sequence[int]) -> None:
    """Counts the layouts of the space with those that broke a rule. layouts: those that were priced. As in the exact
    search, they fit where they need no more than the device has."""
    fitting = int((space.memory_bytes[layouts] <= space.problem.cluster.device.memory_bytes).sum())
    space.tally.keep(fitting)
    for reason, count in ((MEMORY, len(layouts) - fitting), (NOT_PRICED, len(space) - len(layouts))):
        if count:
            space.tally.drop(reason, f"{count:,} of {len(space):,} in the space", count=count)


def _claim(space: Space, request: PlanRequest) -> str:
    if request.search == EXACT:
        return f"no layout with one recompute set and an even or balanced cut is faster by {_name(request)}"
    return (
        f"found by {SEARCHERS.said(request.search)} with {space.evaluations:,} of {len(space):,} layouts priced by "
        f"{_name(request)}; nothing is proven"
    )


def _name(request: PlanRequest) -> str:
    if request.cost_model == OURS:
        return "autoshard's cost model"
    return f"the cost model {COST_MODELS.said(request.cost_model)}"


def _notes(best: Candidate, price: Price, request: PlanRequest) -> Iterator[str]:
    if request.cost_model != OURS:
        yield (
            f"cost model {COST_MODELS.said(request.cost_model)}: {format_seconds(price.step_time_s)} a step and "
            f"{format_bytes(price.memory_bytes)}; it chose the layout, the estimate in this plan is autoshard's"
        )
        if not best.estimate.fits:
            needed, capacity = best.estimate.fullest.total_bytes, best.estimate.memory_capacity_bytes
            yield (
                f"memory: by autoshard's cost model the layout does not fit, it needs {format_bytes(needed)} of "
                f"{format_bytes(capacity)}"
            )


def _nothing_fits(space: Space, request: PlanRequest, layout: int | None) -> AutoshardError:
    """The error where the layout that was taken, if any, does not fit."""
    model, cluster, name = space.problem.model, space.problem.cluster, _name(request)
    where = f"{cluster.nodes} x {cluster.instance}"
    if request.search != EXACT and (space.memory_bytes <= space.level.memory_bytes).any():
        if layout is not None and layout not in space.prices:
            return NoneFound(
                f"search={request.search} returned layout {layout} of {model.name} on {where}, which it did not price "
                f"and which needs {format_bytes(float(space.memory_bytes[layout]))} of "
                f"{format_bytes(space.level.memory_bytes)}; space.price says what fits, search={EXACT} finds one"
            )
        if not space.evaluations:
            longer = "" if request.time_limit is None else f"use a time limit above {request.time_limit:g} s, or "
            return NoneFound(
                f"search={request.search} priced none of {len(space):,} layouts of {model.name} on {where}; {longer}"
                f"space.price says what fits, search={EXACT} finds one"
            )
        return NoneFound(
            f"search={request.search} found no layout of {model.name} on {where} that fits among "
            f"{space.evaluations:,} of {len(space):,}; use more evaluations, or search={EXACT}"
        )
    needed_bytes = float(space.memory_bytes.min())
    chunks = _in_chunks(space.problem, space.pins, needed_bytes)
    return NoLayoutFits(
        f"no layout of {model.name} on {where} fits by {name}: the smallest needs "
        f"{format_bytes(needed_bytes)} of {format_bytes(space.level.memory_bytes)}; use more nodes"
        + (f", or the logits in chunks, {chunks}" if chunks else "")
    )


def _in_chunks(problem: Problem, pins: Pins, needed_bytes: float) -> str:
    """'loss_chunks=64 with backend torch': chunks of the loss with which a layout may fit; '' where they cannot help.
    The exact search takes them by itself."""
    from autoshard.planner.loss_chunks import that_may_fit

    chunks = that_may_fit(problem, pins, needed_bytes)
    return "" if chunks == 1 else f"loss_chunks={chunks} with backend {ANYWHERE.name}"
