"""From a request to a plan: load what it names, search, write down what was decided on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from math import inf
from pathlib import Path

from autoshard.backends.native_neuron import model_traces_whole
from autoshard.backends.registry import ANYWHERE, BACKENDS, as_run_by, usual_backend
from autoshard.backends.rules import Draft, Problem, warnings
from autoshard.cost.compute import product_formats, quantized_products
from autoshard.cost.fit_probability import levels
from autoshard.cost.stage_program import quantized
from autoshard.errors import AutoshardError, NoLayoutFits, NoneFound
from autoshard.files.fields import check_choice
from autoshard.graph.ir import OPERAND_BYTES
from autoshard.graph.partition import Choice
from autoshard.graph.quantize import with_quantized_products
from autoshard.graph.recompute import name_in_block
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import is_user_module, load_model, published_dropout
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.best_practice import best_practice
from autoshard.planner.choice import passed_over
from autoshard.planner.compiling import REGIONS_STAY, launches_at_most_s, no_way_pays, whole_stages
from autoshard.planner.hybrid import beside_fsdp
from autoshard.planner.input_notes import input_notes
from autoshard.planner.no_answer import NothingFits, NothingLegal
from autoshard.planner.request import INSTANCE, PIN_FIELDS, SEARCHED, SEQUENCE_LENGTH, PlanRequest
from autoshard.planner.search import search_once
from autoshard.planner.search_words import said_of_megatron, taken_instead
from autoshard.plans.plan import Plan, SearchSummary, make_plan, operator_choices
from autoshard.plans.search_result import Candidate, Pins, SearchResult
from autoshard.spec.cluster import Cluster, load_cluster, no_native_release
from autoshard.spec.dropout import NO_DROPOUT, PUBLISHED, Dropout, parse_dropout
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import LOSS_SCALING_FACTOR, MultiTokenPrediction
from autoshard.spec.product_format import PRODUCT_FORMATS
from autoshard.spec.routing import check_routing, with_imbalance
from autoshard.spec.sdk import release
from autoshard.spec.stack import WHOLE_STAGES
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import counted, format_number, format_seconds


@dataclass(frozen=True)
class Answer:
    """The search on one cluster and its result. notes: sentences on what was decided on the way there. given: on the
    inputs and the backend. operators: the solver's choices of the best layout; None: Megatron's."""

    problem: Problem
    result: SearchResult
    notes: tuple[str, ...]
    given: tuple[str, ...] = ()
    operators: Mapping[str, Choice] | None = None


def plan_for(request: PlanRequest) -> Plan:
    """The best plan by the request's objective. Raises AutoshardError for a wrong request, NoLayoutFits where nothing
    fits or meets it."""
    if request.objective_is_plain and request.tokens is None and request.days is None:
        from autoshard.planner.precisions import best_precision

        return plan_of(request, best_precision(request))
    from autoshard.planner.objectives import best_answer

    return plan_of(request, best_answer(request))


def answer(request: PlanRequest) -> Answer:
    """The fastest layouts on exactly the cluster of the request, the best with the solver's operators where they are
    asked for and pay."""
    model, training, cluster, notes = inputs_of(request)
    problem, result, backend_notes = search_backends(model, training, cluster, pins_of(request), request)
    ways: tuple[str, ...] = ()
    is_given = request.cluster is not None and request.cluster.stack is not None
    if request.stack == "auto" and problem.cluster.compiles_regions and not is_given:
        problem, result, ways = _way_of_compiling(problem, result, request)
    advice = best_practice(problem, result.best, request.fit_probability)
    advice += beside_fsdp(problem, pins_of(request), result.best, request.fit_probability)
    found = Answer(problem, result, (*result.notes, *ways, *advice), (*notes, *backend_notes))
    return found if request.operators != "solver" else _with_solver(found, request)


def _way_of_compiling(
    problem: Problem, result: SearchResult, request: PlanRequest
) -> tuple[Problem, SearchResult, tuple[str, ...]]:
    """The problem and the result under the way of compiling that is chosen, and a note that names it and compares the
    two: regions between collectives, as the problem has them, or whole stages. The latter are searched only where the
    launches of regions leave room for them to be faster beyond doubt."""
    from autoshard.planner.other_search import is_other

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


def inputs_of(
    request: PlanRequest, model: ModelSpec | None = None
) -> tuple[ModelSpec, TrainingSpec, Cluster, tuple[str, ...]]:
    """(model, training, cluster, notes) of a request. model: in place of the one that the request names. Raises
    AutoshardError for a wrong request."""
    model = _trained(_model(request) if model is None else model, request)
    cluster = _cluster(request)
    if request.price_per_node_hour is not None:
        cluster = replace(cluster, price_per_node_hour_usd=request.price_per_node_hour)
    length, notes = _sequence_length(request, model)
    precision = load_precision(_names(request, cluster)[0])
    quantized_products(cluster.device, precision)  # raises where the device has none
    training = _keeping_wide(TrainingSpec(length, request.global_batch, precision), request, model, cluster)
    if request.operators == "solver":
        _check_solver(request, model, training)
    if request.expert_imbalance is not None:
        training = with_imbalance(training, request.expert_imbalance)
        check_routing(model, training)
    name = request.backend if request.backend != "auto" else usual_backend(cluster).name
    check_choice("the request", "backend", name, BACKENDS)
    if request.device != "auto" and name != ANYWHERE.name:
        raise AutoshardError(
            f"device={request.device} with backend={request.backend}: the native device is torch's; use backend=torch"
        )
    cluster = as_run_by(cluster, name, request.stack)
    if request.sdk is not None and cluster.sdk != release(request.sdk):
        raise AutoshardError(no_native_release(request.sdk))
    if request.device != "auto" and cluster.stack is None:
        raise AutoshardError(f"device={request.device}: {cluster.native_elsewhere}; leave device out")
    return model, training, cluster, (*notes, *input_notes(model, training, name))


def _check_solver(request: PlanRequest, model: ModelSpec, training: TrainingSpec) -> None:
    """Raise AutoshardError where the solver is not installed or shards no operators of such layouts or models."""
    if "etp" in request.pins or request.searches_etp:
        raise AutoshardError("etp with operators=solver: the integer program places experts itself; leave one out")
    blocks = training.blocks_of(model.blocks)
    if len(blocks.kinds) > 1:
        kept = f" with keep_bf16={training.kept_wide}" if blocks != model.blocks else ""
        raise AutoshardError(
            f"operators=solver: the integer program shards blocks that are alike; {model.name}{kept} has "
            f"{len(blocks.kinds)} kinds of blocks; use operators=megatron"
        )
    from autoshard.planner.operators.linear import highs

    highs()


def precision_names(request: PlanRequest) -> tuple[str, ...]:
    """The precisions that a request asks for, the simplest first where it asks for any that pays."""
    if request.precision != SEARCHED:
        return tuple(request.precision.split(","))
    return _names(request, inputs_of(request)[2])


def _names(request: PlanRequest, cluster: Cluster) -> tuple[str, ...]:
    if request.precision != SEARCHED:
        return tuple(request.precision.split(","))
    return ("mixed_precision", *product_formats(cluster.device))


def _keeping_wide(training: TrainingSpec, request: PlanRequest, model: ModelSpec, cluster: Cluster) -> TrainingSpec:
    """The training with what --keep-bf16 names. Raises AutoshardError where no layer of a block that is quantised
    goes by one of the names, and where nothing is quantised."""
    if request.keep_bf16 is None or training.precision.products is None:
        asked = map(load_precision, _names(request, cluster))
        if request.keep_bf16 is not None and all(one.products is None for one in asked):
            raise AutoshardError(
                f"keep_bf16={request.keep_bf16} with precision={request.precision}, which quantises nothing; "
                f"{', '.join(PRODUCT_FORMATS)} do"
            )
        return training
    block = stage_graph(model, dim_sizes(model, 1, 1), model.kinds, False, False)
    marked = with_quantized_products(block, *quantized(model, training, ()))
    quantised = [op for op in marked.operators if OPERAND_BYTES in op.attributes]
    known = list(dict.fromkeys([op.module for op in quantised] + [name_in_block(op.name) for op in quantised]))
    ends, names = {"first": 0, "last": 0}, set[str]()
    for one in request.keep_bf16.split("+"):
        end, _, count = one.partition("=")
        if count:
            ends[end] = int(count)
        elif one in known:
            names.add(one)
        else:
            raise AutoshardError(
                f"keep_bf16={one}: no layer of a block of {model.name} that {training.precision.name} quantises; "
                f"known: {', '.join(known)}, "
                "first=N and last=N blocks"
            )
    if sum(ends.values()) > model.num_hidden_layers:
        raise AutoshardError(
            f"keep_bf16={request.keep_bf16}: {model.name} has {counted(model.num_hidden_layers, 'block')}"
        )
    return replace(
        training,
        unquantized=tuple(sorted(names)),
        unquantized_first=ends["first"],
        unquantized_last=ends["last"],
    )


def _cluster(request: PlanRequest) -> Cluster:
    if request.cluster is not None:
        return request.cluster.with_nodes(request.nodes)
    instance = request.instance or (None if request.hardware else INSTANCE)
    lnc = None if request.lnc == SEARCHED else request.lnc
    assert lnc is None or isinstance(lnc, int), lnc
    return load_cluster(instance, request.nodes, lnc, request.hardware, request.sdk)


def _model(request: PlanRequest) -> ModelSpec:
    """By name or config; "file.py:Class" is traced, once in this process as long as the file stays as it is."""
    if isinstance(request.model, ModelSpec):
        return request.model
    if not is_user_module(request.model):
        return load_model(request.model)
    if request.dropout is not None:
        raise AutoshardError(f"dropout={request.dropout} of {request.model}: a traced module is trained without")
    if find_spec("torch") is None:
        raise AutoshardError(f"model={request.model} is traced with torch: pip install 'autoshard[torch]'")
    file = Path(request.model.rpartition(":")[0]).absolute()
    return _traced(request.model, request.seq_len, file, _content(file))


def _trained(model: ModelSpec, request: PlanRequest) -> ModelSpec:
    """The model with what training drops, and with the prediction module that it has where it is asked for."""
    count, weight = request.mtp_num_layers, request.mtp_loss_scaling_factor
    if weight is not None and not count:
        raise AutoshardError(f"mtp_loss_scaling_factor={weight:g} goes with mtp_num_layers=1, not {count}")
    module = MultiTokenPrediction(count, LOSS_SCALING_FACTOR if weight is None else weight) if count else None
    if model.graph is not None:  # a traced module is trained as it is
        if request.dropout is not None:
            raise AutoshardError(f"dropout={request.dropout} of {model.name}: a traced module is trained without")
        return model if module is None else replace(model, multi_token_prediction=module)
    return replace(model, dropout=_dropout(request), multi_token_prediction=module)


def _dropout(request: PlanRequest) -> Dropout:
    if request.dropout is None:
        return NO_DROPOUT
    if request.dropout != PUBLISHED:
        return parse_dropout(request.dropout)
    if isinstance(request.model, ModelSpec):
        raise AutoshardError(
            f"dropout={PUBLISHED}: {request.model.name} was given without its config.json; give probabilities"
        )
    return published_dropout(request.model)


@lru_cache(maxsize=8)
def _traced(model: str, seq_len: int | None, file: Path, content: bytes) -> ModelSpec:
    """The model that a user's file makes. file, content: where it is and what it says: an edited one is traced anew."""
    from autoshard.tracer.trace import trace_model  # brings torch

    return trace_model(model, seq_len)


def _content(file: Path) -> bytes:
    """The bytes of a file; none where it cannot be read."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except OSError:  # the import says why
        return b""


def pins_of(request: PlanRequest) -> Pins:
    """The choices that the user fixed."""
    named = {PIN_FIELDS.get(name, name): value for name, value in request.pins.items()}
    rules = {name: getattr(request, name) for name in ("beaten_path", "searches_replicas", "searches_etp")}
    return Pins(**named, **rules)


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
    operators = solved_choices(problem, solved.strategy, solved.operators)
    least_s = min((1 - solved.gap) * best.estimate.step_time_s, least_s)
    result = taken_instead(problem, passed_over(problem, pins_of(request)), result, best)
    words = f"operators by the solver: {_proven(least_s, best)}"
    return replace(result, runners_up=others, optimality=words), operators, note


def _proven(least_s: float, taken: Candidate) -> str:
    """least_s: seconds that any layout takes at least, with Megatron's operators and with others."""
    share = max(0.0, 1 - least_s / taken.estimate.step_time_s)
    return (
        f"no layout, however its operators are sharded, is more than {format_number(100 * share, 2)} % faster, proven"
    )


def solved_choices(problem: Problem, strategy: Strategy, others: OperatorChoices) -> dict[str, Choice]:
    """The choice of every operator template: the rule's, but for the others."""
    given = {template: dict(choice) for template, choice in others}
    rule = operator_choices(problem.model, problem.cluster, strategy)
    return {template: given.get(template, choice) for template, choice in rule.items()}


def _sequence_length(request: PlanRequest, model: ModelSpec) -> tuple[int, tuple[str, ...]]:
    """The length, and a note where the model has too few positions for the usual one."""
    limit = model.max_position_embeddings
    if request.seq_len is None:
        if limit >= SEQUENCE_LENGTH:
            return SEQUENCE_LENGTH, ()
        return limit, (f"seq-len {limit:,}, not {SEQUENCE_LENGTH:,}: {model.name} has {limit:,} positions",)
    if request.seq_len <= limit:
        return request.seq_len, ()
    if model.rope_theta is None:
        raise AutoshardError(
            f"seq-len={request.seq_len} is beyond max_position_embeddings={limit} of {model.name}, "
            f"which learned no more positions; at most {limit} works"
        )
    return request.seq_len, ()


def search_backends(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, pins: Pins, request: PlanRequest
) -> tuple[Problem, SearchResult, tuple[str, ...]]:
    """(problem, result, notes). With backend auto, the one that runs anywhere steps in where the rules of the usual one
    leave nothing; the cluster of the problem then has the stack that it runs on. A searcher that found nothing among
    what it looked at is no proof of that."""
    backend = request.backend if request.backend != "auto" else usual_backend(cluster).name
    usual = Problem(model, training, cluster, backend)
    try:
        return usual, _searched(usual, pins, request), ()
    except AutoshardError as error:
        if request.backend != "auto" or backend == ANYWHERE.name or isinstance(error, NoneFound):
            raise
        refused = error
    try:
        other_cluster = inputs_of(replace(request, backend=ANYWHERE.name), model)[2]
        other = usual._replace(cluster=other_cluster, backend=ANYWHERE.name)
        result = _searched(other, pins, request)
    except AutoshardError as error:
        if isinstance(error, NoneFound) or (isinstance(error, NoLayoutFits) and not isinstance(refused, NoLayoutFits)):
            kind = NoneFound if isinstance(error, NoneFound) else NoLayoutFits
            raise kind(f"{refused}; with backend {ANYWHERE.name} {error}") from None
        raise refused from None
    return other, result, (_why_not(backend, refused),)


def _searched(problem: Problem, pins: Pins, request: PlanRequest) -> SearchResult:
    """The result of the searcher and the cost model that the request names."""
    from autoshard.planner.other_search import is_other, other_search

    if is_other(request):
        return other_search(problem, pins, request)
    limit_s = inf if request.time_limit is None else request.time_limit
    return search_once(problem, pins, request.top, request.exhaustive, request.fit_probability, limit_s)


def _why_not(backend: str, refused: AutoshardError) -> str:
    """A note on the error of a backend's search where another one steps in."""
    found = "none that fits" if isinstance(refused, NoLayoutFits) else "no layout"
    reason = refused.reason if isinstance(refused, NothingLegal | NothingFits) else str(refused)
    return f"backend {ANYWHERE.name}, because {backend} has {found}: {reason}"
