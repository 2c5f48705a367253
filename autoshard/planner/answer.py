"""The search on exactly the cluster and in the precision of a request, and what was decided on the way there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from autoshard.backends.native_neuron import model_traces_whole
from autoshard.backends.registry import ANYWHERE
from autoshard.backends.rules import Draft, Problem
from autoshard.cost.fit_probability import levels, place_of
from autoshard.errors import AutoshardError, NoLayoutFits, NoneFound
from autoshard.graph.partition import Choice
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy
from autoshard.planner.best_practice import best_practice
from autoshard.planner.choice import passed_over
from autoshard.planner.compiling import REGIONS_STAY, launches_at_most_s, no_way_pays, whole_stages
from autoshard.planner.hybrid import beside_fsdp
from autoshard.planner.inputs import backend_of, inputs_of, pins_of, release_notes
from autoshard.planner.loss_chunks import Found, faster_in_chunks, fitting_in_chunks
from autoshard.planner.no_answer import NothingFits, NothingLegal
from autoshard.planner.other_search import check_search, is_other, other_search
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search_once
from autoshard.planner.search_words import said_of_megatron, taken_instead
from autoshard.plans.plan import operator_choices
from autoshard.plans.search_result import Candidate, Pins, SearchResult
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.stack import WHOLE_STAGES
from autoshard.spec.training import TrainingSpec
from autoshard.units import format_number, format_seconds, percent


@dataclass(frozen=True)
class Answer:
    """The search on one cluster and its result. notes: sentences on what was decided on the way there. given: on the
    inputs and the backend. operators: the solver's choices of the best layout; None: Megatron's."""

    problem: Problem
    result: SearchResult
    notes: tuple[str, ...]
    given: tuple[str, ...] = ()
    operators: Mapping[str, Choice] | None = None


def unsureness(found: Answer, request: PlanRequest) -> int:
    """0 where the best layout of an answer fits as surely as was asked for, the more the less surely it fits. Of two
    answers of a request one with less is taken, as of two layouts."""
    needed = found.result.best.estimate.fullest.total_bytes
    return place_of(needed, found.problem.cluster, request.fit_probability)


def fits_but(found: Answer, request: PlanRequest, chosen: Answer) -> str:
    """The clause on an answer that is passed over because the chosen one fits more surely; empty of any other."""
    if unsureness(found, request) <= unsureness(chosen, request):
        return ""
    return f", which fits less surely, with {percent(found.result.best.estimate.fits_probability)} probability"


def answer(request: PlanRequest) -> Answer:
    """The fastest layouts on exactly the cluster of the request, the best with the solver's operators where they are
    asked for and pay."""
    check_search(request)
    model, training, cluster, notes = inputs_of(request)
    problem, result, ways, backend_notes = _in_chunks_that_pay(model, training, cluster, request)
    is_given = request.cluster is not None and request.cluster.stack is not None
    if request.stack == "auto" and problem.cluster.compiles_regions and not is_given:
        problem, result, compiling = _way_of_compiling(problem, result, request)
        ways += compiling
    advice = best_practice(problem, result.best, request.fit_probability)
    advice += beside_fsdp(problem, pins_of(request), result.best, request.fit_probability)
    found = Answer(problem, result, (*result.notes, *ways, *advice), (*notes, *backend_notes))
    return found if request.operators != "solver" else _with_solver(found, request)


def _in_chunks_that_pay(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, request: PlanRequest
) -> tuple[Problem, SearchResult, tuple[str, ...], tuple[str, ...]]:
    """(problem, result, sentences on chunks of the loss, sentences on the backend), with the loss in chunks where the
    request leaves that open and a better layout is then possible."""
    pins = pins_of(request)
    problem, result, ways, notes = search_backends(model, training, cluster, pins, request)
    if not _chunks_are_open(request) or ways:
        return problem, result, ways, notes
    faster = faster_in_chunks(problem, result, lambda chunked: _searched(chunked, pins, request))
    return *(faster or (problem, result, ())), notes


def _chunks_are_open(request: PlanRequest) -> bool:
    return request.loss_chunks is None and not is_other(request)


def _way_of_compiling(
    problem: Problem, result: SearchResult, request: PlanRequest
) -> tuple[Problem, SearchResult, tuple[str, ...]]:
    """The problem and the result under the way of compiling that is chosen, and a note that names it and compares the
    two: regions between collectives, as the problem has them, or whole stages. The latter are searched only where the
    launches of regions leave room for them to be faster beyond doubt."""
    if is_other(request):
        return problem, result, ()
    share = launches_at_most_s(problem, pins_of(request)) / result.best.estimate.step_time_s
    if share < REGIONS_STAY:
        return problem, result, (no_way_pays(problem, share),)
    cluster = inputs_of(replace(request, stack=WHOLE_STAGES, backend=problem.backend), problem.model)[2]
    whole = problem._replace(cluster=cluster)
    no_choice = f"whole stages as graphs, --stack {WHOLE_STAGES}, are no choice here: "
    wrong = model_traces_whole(whole, Draft.of(result.best.strategy))
    if wrong is not None:  # of every layout
        return problem, result, (no_choice + wrong,)
    try:
        other = _searched(whole, pins_of(request), request)
    except AutoshardError as error:
        return problem, result, (f"{no_choice}{error}",)
    is_chosen, note = whole_stages(problem, result.best, whole, other.best, request.fit_probability)
    return (whole, other, (note,)) if is_chosen else (problem, result, (note,))


def _with_solver(found: Answer, request: PlanRequest) -> Answer:
    """The answer with the solver's operators where they pay. Notes on the layout before are then said to be of that."""
    result, operators, note = _solved(found.problem, found.result, request)
    if operators is None:
        return replace(found, result=result, notes=(*found.notes, note))
    before = said_of_megatron(one for one in found.notes if one not in result.notes)
    return replace(found, result=result, notes=(*result.notes, note, *before), operators=operators)


def _solved(
    problem: Problem, result: SearchResult, request: PlanRequest
) -> tuple[SearchResult, Mapping[str, Choice] | None, str]:
    """The result with the solver's operators where they pay, those operators, and a note of what they bring. The notes
    of the result are then those of its layout."""
    from autoshard.planner.operators.combine import WORTH, combine

    least_s = (1 - result.gap) * result.best.estimate.step_time_s
    layouts = (result.best, *result.runners_up)
    known_s, needed = min(one.estimate.step_time_s for one in layouts), result.best.estimate.fullest.total_bytes
    sure = (one.memory_bytes for one in levels(problem.cluster, request.fit_probability))
    limit_bytes = next((limit for limit in sure if needed <= limit), problem.cluster.device.memory_bytes)
    solved = combine(problem, pins_of(request), known_s, limit_bytes, request.exhaustive)
    asked = (
        f"blocks of {solved.blocks} local shapes solved, {solved.points} points of their Pareto sets in whole layouts"
    )
    if solved.strategy is None or solved.estimate is None:
        note = f"operators: none make the step {WORTH:.1%} faster than Megatron's, which stay; {asked}"
        least_s = min((1 - solved.gap) * known_s, least_s)
        return replace(result, optimality=f"{result.optimality}; {_proven(least_s, result.best)}"), None, note
    others = tuple(one for one in layouts if one.strategy != solved.strategy)[: len(result.runners_up)]
    step, before = (format_seconds(seconds) for seconds in (solved.estimate.step_time_s, known_s))
    note = f"operators by the solver: {step} a step; the best layout with Megatron's would take {before}; {asked}"
    best = Candidate(solved.strategy, solved.estimate)
    operators = _solved_choices(problem, solved.strategy, solved.operators)
    least_s = min((1 - solved.gap) * best.estimate.step_time_s, least_s)
    result = taken_instead(problem, passed_over(problem, pins_of(request)), result, best)
    words = f"operators by the solver: {_proven(least_s, best)}"
    return replace(result, runners_up=others, optimality=words), operators, note


def _proven(least_s: float, taken: Candidate) -> str:
    """The clause on how far the answer may be from the best.

    least_s: seconds that any layout takes at least, with Megatron's operators and with others.
    """
    share = max(0.0, 1 - least_s / taken.estimate.step_time_s)
    return (
        f"no layout, however its operators are sharded, is more than {format_number(100 * share, 2)} % faster, proven"
    )


def _solved_choices(problem: Problem, strategy: Strategy, others: OperatorChoices) -> dict[str, Choice]:
    """The choice of every operator template: the rule's, but for the others."""
    given = {template: dict(choice) for template, choice in others}
    rule = operator_choices(problem.model, problem.training, problem.cluster, strategy)
    return {template: given.get(template, choice) for template, choice in rule.items()}


def search_backends(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, pins: Pins, request: PlanRequest
) -> tuple[Problem, SearchResult, tuple[str, ...], tuple[str, ...]]:
    """(problem, result, sentences on chunks of the loss, sentences on the backend). With backend auto, the one that
    runs anywhere steps in where the rules of the usual one leave nothing; the cluster of the problem then has the stack
    that it runs on. A searcher that found nothing among what it looked at is no proof of that."""
    backend = backend_of(request, cluster)
    usual = Problem(model, training, cluster, backend)
    try:
        return *_searched_in_chunks(usual, pins, request), ()
    except AutoshardError as error:
        if request.backend != "auto" or backend == ANYWHERE.name or isinstance(error, NoneFound):
            raise
        refused = error
    try:
        other_cluster = inputs_of(replace(request, backend=ANYWHERE.name), model)[2]
        other = usual._replace(cluster=other_cluster, backend=ANYWHERE.name)
        other, result, ways = _searched_in_chunks(other, pins, request)
    except AutoshardError as error:
        if isinstance(error, NoneFound) or (isinstance(error, NoLayoutFits) and not isinstance(refused, NoLayoutFits)):
            kind = NoneFound if isinstance(error, NoneFound) else NoLayoutFits
            raise kind(f"{refused}; with backend {ANYWHERE.name} {error}") from None
        if isinstance(refused, NothingFits) and isinstance(error, NothingFits):
            raise refused.beside(error) from None
        both_by_rules = isinstance(refused, NothingLegal) and isinstance(error, NothingLegal)  # mostly the same ones
        is_of_searcher = is_other(request)  # which fails with any backend
        if not (both_by_rules or is_of_searcher or isinstance(refused, NoLayoutFits) or str(refused) == str(error)):
            raise AutoshardError(f"{refused}; with backend {ANYWHERE.name} {error}") from None
        raise refused from None
    return other, result, ways, (_why_not(backend, refused), *release_notes(request.cluster, other_cluster))


def _searched_in_chunks(problem: Problem, pins: Pins, request: PlanRequest) -> Found:
    """(problem, result, sentences on chunks of the loss) of a search; with the loss in chunks where the request leaves
    that open and nothing fits without. Raises what `_searched` raises."""
    try:
        return problem, _searched(problem, pins, request), ()
    except NothingFits as error:
        if not _chunks_are_open(request):
            raise
        found = fitting_in_chunks(error, lambda chunked: _searched(chunked, pins, request))
        if found is None:
            raise
        return found


def _searched(problem: Problem, pins: Pins, request: PlanRequest) -> SearchResult:
    """The result of the searcher and the cost model that the request names."""
    if is_other(request):
        return other_search(problem, pins, request)
    limit_s = inf if request.time_limit is None else request.time_limit
    return search_once(problem, pins, request.top, request.exhaustive, request.fit_probability, limit_s)


def _why_not(backend: str, refused: AutoshardError) -> str:
    """A note on the error of a backend's search where another one steps in."""
    found = "none that fits" if isinstance(refused, NoLayoutFits) else "no layout"
    reason = refused.reason if isinstance(refused, NothingLegal | NothingFits) else str(refused)
    return f"backend {ANYWHERE.name}, because {backend} has {found}: {reason}"
