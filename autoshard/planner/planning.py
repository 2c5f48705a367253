"""From a request to a plan: the answer by its objective, written down."""

from __future__ import annotations

from autoshard.backends.rules import warnings
from autoshard.planner.answer import Answer
from autoshard.planner.inputs import pins_of
from autoshard.planner.objectives import best_answer
from autoshard.planner.precisions import best_precision
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan, SearchSummary, make_plan


def plan_for(request: PlanRequest) -> Plan:
    """The best plan by the request's objective. Raises AutoshardError for a wrong request, NoLayoutFits where nothing
    fits or meets it."""
    if request.objective_is_plain and request.tokens is None and request.days is None:
        return plan_of(request, best_precision(request))
    return plan_of(request, best_answer(request))


def plan_of(request: PlanRequest, found: Answer) -> Plan:
    """The plan of an answer to a request."""
    problem, result = found.problem, found.result
    return make_plan(
        *problem,
        result.best.strategy,
        result.best.estimate,
        SearchSummary(
            result.considered,
            result.fitting,
            result.optimality,
            request.fit_probability,
            result.rejections,
            result.beaten_path,
            result.searcher,
            result.cost_model,
        ),
        result.runners_up,
        (*found.given, *found.notes, *warnings(problem, result.best.strategy)),
        pins_of(request),
        found.operators,
    )
