"""Chooses a layout for other nodes: among those about as fast as a search takes, the one that moves the least state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.backends.rules import Problem, warnings
from autoshard.cost.estimate import Estimate
from autoshard.cost.interval import CHOICE_WORDS, FIT_PROBABILITY
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy
from autoshard.planner.choice import PassedOver, passed_over
from autoshard.planner.input_notes import TEXT_ALONE, input_notes
from autoshard.planner.loss_chunks import faster_in_chunks, fitting_in_chunks
from autoshard.planner.no_answer import NothingFits
from autoshard.planner.ranking import describe
from autoshard.planner.search import search
from autoshard.planner.search_words import said_of_megatron, taken_instead
from autoshard.plans.mixture_changes import mixture_changes
from autoshard.plans.plan import Plan, SearchSummary, make_plan
from autoshard.plans.prices import other_operators, priced
from autoshard.plans.search_result import Candidate, Pins, SearchResult
from autoshard.replanning.edit import with_operators
from autoshard.replanning.moved import Moved, held, moved
from autoshard.spec.cluster import Cluster
from autoshard.units import format_bytes, format_seconds

LITTLE = 0.02
"""A layout is considered if it is at most this much slower than the one that a search takes. A guess at what nobody
notices, far below what the cost model can tell apart."""
WORTH = 0.05
"""Another layout than the search's is taken only if it leaves this much more of the state in place. A guess."""
TOP = 20
"""How many runners-up are looked at, beside the best layouts that keep degrees of the old one."""
NEAR = f"within {LITTLE:.0%} of the layout that plan takes, and of those looked at the one that moves least"
"""The claim of a plan with another layout than the search's."""
KEPT_CHUNKS = (
    "loss in {chunks} chunks, as in the plan before; plan without --loss-chunks chooses them anew, which may be faster"
)
_KEPT_TOGETHER = (("tp", "pp", "cp", "ep", "num_virtual_stages"), ("tp", "pp"), ("tp",), ("pp",))
"""Sets of degrees of the old layout that are tried as pins: state that both layouts place in the same way does not
move."""
_COMPARED = ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size", "schedule")


@dataclass(frozen=True)
class Replanned:
    """The result of replanning. plan: for the new number of nodes. searched: the layout that a search takes, which may
    be the plan's own. moved, searched_moved: the state that each of them has to read from elsewhere."""

    plan: Plan
    moved: Moved
    searched: Candidate
    searched_moved: Moved


def replan(before: Plan, nodes: int) -> Replanned:
    """A plan for the same model, training, kind of node and pins on another number of nodes. Where nothing fits there
    but with the loss in chunks, or a faster layout then compiles, the training gets them, which leaves its mathematics
    alone.

    Raises AutoshardError where pins contradict each other or no layout is legal, NoLayoutFits where none fits.
    """
    cluster = before.cluster.with_nodes(nodes)
    asked, pins, result, notes = _search_in_chunks(before, cluster)
    problem = Problem(asked.model, asked.training, cluster, asked.backend)
    passed, searched = passed_over(problem, pins), result.best
    sure = min(_fit_probability(before), searched.estimate.fits_probability)
    near = [one for one in _candidates(asked, cluster, pins, result) if _is_as_good(passed, one, searched, sure)]
    there, distances = held(before, cluster.world_size), dict[tuple[object, ...], Moved]()
    for one in near:
        key = _placement(one.strategy)
        if key not in distances:
            distances[key] = moved(there, _plan(asked, cluster, one))
    chosen = min(near, key=lambda one: (distances[_placement(one.strategy)].moved_bytes, one.estimate.step_time_s))
    distance, searched_distance = (distances[_placement(one.strategy)] for one in (chosen, searched))
    if distance.kept_share < searched_distance.kept_share + WORTH:
        chosen, distance = searched, searched_distance
    others = tuple(one for one in (searched, *result.runners_up) if one.strategy != chosen.strategy)
    if chosen.strategy != searched.strategy:
        result = replace(taken_instead(problem, passed, result, chosen), optimality=NEAR)
    choices = other_operators(before)
    kept, operator_notes = _with_operators(_plan(asked, cluster, chosen), choices, sure)
    if kept is not None:
        distance = moved(there, kept)
        words = f"with Megatron's operators {result.optimality}"
        result = replace(result, notes=said_of_megatron(result.notes), optimality=words)
    plan = make_plan(
        *problem,
        chosen.strategy,
        chosen.estimate if kept is None else kept.estimate,
        SearchSummary(
            result.considered,
            result.fitting,
            result.optimality,
            _fit_probability(before),
            result.rejections,
            result.beaten_path,
        ),
        others[:5],
        (
            *notes,
            *_notes(before, cluster, chosen, distance, searched, searched_distance),
            *mixture_changes(before, _plan(asked, cluster, chosen)),
            *(note for note in before.notes if TEXT_ALONE in note),
            *input_notes(*problem[:2], problem.backend),
            *result.notes,
            *operator_notes,
            *_where_before_is_faster(before, cluster, chosen.estimate if kept is None else kept.estimate),
            *warnings(problem, chosen.strategy),
        ),
        pins,
        None if kept is None else kept.operators,
    )
    return Replanned(plan, distance, searched, searched_distance)


def _is_as_good(passed: PassedOver, one: Candidate, searched: Candidate, sure: float) -> bool:
    """Whether a layout is about as fast as the one that a search takes, and no more is held against it. sure: the
    probability with which it has to fit."""
    if one.estimate.step_time_s > searched.estimate.step_time_s * (1 + LITTLE) or one.estimate.fits_probability < sure:
        return False
    return not passed.more_against(one.strategy, searched.strategy)


def _with_operators(plan: Plan, others: OperatorChoices, sure: float) -> tuple[Plan | None, tuple[str, ...]]:
    """The plan with choices of operators that are not Megatron's, None where they are not worth it, and a note on them.
    sure: the probability with which it has to fit."""
    if not others:
        return None, ()
    kept = with_operators(plan, others)
    if kept is None:
        why = "do not go with this layout"
    elif kept.estimate.fits_probability < sure:
        why = "need too much memory in this layout"
    elif kept.estimate.step_time_s >= plan.estimate.step_time_s:
        why = "make this layout no faster"
    else:
        step, before = (format_seconds(one.estimate.step_time_s) for one in (kept, plan))
        return kept, (f"operators: those of the plan before stay: {step} a step, {before} with Megatron's",)
    return None, (f"operators by Megatron's rule: those of the plan before {why}; --operators solver solves anew",)


def _where_before_is_faster(before: Plan, cluster: Cluster, now: Estimate) -> Iterator[str]:
    """A note on the plan before where it is for as many nodes, fits as surely as asked and takes less time, as the
    solver's operators may."""
    if cluster.nodes != before.cluster.nodes:
        return
    then = priced(replace(before, runners_up=())).estimate
    faster = now.step_time_s / then.step_time_s - 1
    if round(faster, 3) > 0 and then.fits_probability >= _fit_probability(before):
        yield (
            f"the plan before is for as many nodes and {faster:.1%} faster: {format_seconds(then.step_time_s)} a step, "
            f"{format_seconds(now.step_time_s)} here; keep it"
        )


def _search_in_chunks(before: Plan, cluster: Cluster) -> tuple[Plan, Pins, SearchResult, tuple[str, ...]]:
    """(plan, pins, result, notes) of `_search`; where nothing fits but with the loss in chunks, or a faster layout then
    compiles, the training of the plan has these. Chunks that are there stay: a plan does not tell those that were asked
    for from those of a search."""
    chunks = before.training.loss_chunks
    try:
        pins, result, notes = _search(before, cluster)
        if chunks > 1:
            return before, pins, result, (*notes, KEPT_CHUNKS.format(chunks=chunks))
        whole = Problem(before.model, before.training, cluster, before.backend)
        faster = faster_in_chunks(
            whole, result, lambda chunked: _searched(replace(before, training=chunked.training), cluster, pins)
        )
        problem, result, sentences = faster or (whole, result, ())
        return replace(before, training=problem.training), pins, result, (*notes, *sentences)
    except NothingFits as error:
        if chunks > 1:
            raise
        pins = error.pins
        found = fitting_in_chunks(error, lambda problem: search(*problem[:3], pins, problem.backend, top=0))
        if found is None:
            raise
        problem, _, sentences = found
    asked = replace(before, training=problem.training)
    pins, result, notes = _search(asked, cluster)
    return asked, pins, result, (*notes, *sentences)


def _search(before: Plan, cluster: Cluster) -> tuple[Pins, SearchResult, tuple[str, ...]]:
    """Searches with the old plan's pins: (pins, result, notes). A pinned dp is dropped where the search fails with
    it. Raises AutoshardError as the search does; of other pins it says how the plan loses one."""
    pins, notes = before.pins, tuple[str, ...]()
    if pins.dp is not None:
        try:
            return pins, _searched(before, cluster, pins), ()
        except AutoshardError:
            note = f"dp={pins.dp} was pinned; on {cluster.nodes:,} nodes it is searched"
            pins, notes = replace(pins, dp=None), (note,)
    try:
        return pins, _searched(before, cluster, pins), notes
    except NoLayoutFits:
        raise
    except AutoshardError as error:
        if not pins.fixed:
            raise
        one = list(pins.fixed)[-1]
        raise AutoshardError(f"{error}; of the plan's pins replan --edit inputs.pins.{one}=null frees one") from None


def _searched(before: Plan, cluster: Cluster, pins: Pins) -> SearchResult:
    return search(
        before.model, before.training, cluster, pins, before.backend, TOP, fit_probability=_fit_probability(before)
    )


def _fit_probability(before: Plan) -> float:
    return FIT_PROBABILITY if before.search is None else before.search.fit_probability


def _candidates(before: Plan, cluster: Cluster, pins: Pins, result: SearchResult) -> Iterator[Candidate]:
    """The best layouts, and the best of those that keep some degrees of the old layout."""
    yield from (result.best, *result.runners_up)
    for names in _KEPT_TOGETHER:
        kept = {name: getattr(before.strategy, name) for name in names}
        if "ep" in kept and before.strategy.etp is not None:
            kept["etp"] = before.strategy.etp
        if all(getattr(pins, name) in (None, value) for name, value in kept.items()):
            try:
                found = _searched(before, cluster, replace(pins, **kept))
            except AutoshardError:  # these degrees do not go together with the new nodes
                continue
            yield from (found.best, *found.runners_up)


def _placement(strategy: Strategy) -> tuple[object, ...]:
    """A key of all that decides which rank holds which state."""
    s = strategy
    degrees = (s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.dp_replicate, s.num_virtual_stages)
    return *degrees, s.zero, s.stage_layers, s.context_parallel, s.axis_order


def _plan(before: Plan, cluster: Cluster, one: Candidate) -> Plan:
    return make_plan(before.model, before.training, cluster, before.backend, one.strategy, one.estimate)


def _notes(
    before: Plan, cluster: Cluster, chosen: Candidate, distance: Moved, searched: Candidate, searched_distance: Moved
) -> Iterator[str]:
    old, new = before.strategy, chosen.strategy
    same = [name for name in _COMPARED if getattr(old, name) == getattr(new, name)]
    other = [name for name in _COMPARED if name not in same]
    words = {name: CHOICE_WORDS.get(name, name) for name in _COMPARED}
    kept = ", ".join(f"{words[name]} {getattr(new, name)}" for name in same)
    changed = ", ".join(f"{words[name]} {getattr(old, name)} -> {getattr(new, name)}" for name in other)
    nodes = f"from {before.cluster.nodes:,} to {cluster.nodes:,} nodes"
    yield f"replanned {nodes}; stays: {kept or 'nothing'}; changes: {changed or 'nothing'}"
    yield (
        f"{distance.kept_share:.0%} of the training state is where it was, {format_bytes(distance.moved_bytes)} of "
        f"{format_bytes(distance.total_bytes)} are read from other ranks, if the first nodes are those that stay"
    )
    if new == searched.strategy:
        yield (
            f"it is the layout that plan takes; none as sure within {LITTLE:.0%} of it keeps {WORTH:.0%} more of the "
            "state in place"
        )
        return
    faster = chosen.estimate.step_time_s / searched.estimate.step_time_s - 1
    yield (
        f"{describe(searched.strategy)}, the layout that plan takes, is {abs(faster):.2%} "
        f"{'slower' if faster < 0 else 'faster'} and leaves {searched_distance.kept_share:.0%} where it was: up to "
        f"{LITTLE:.0%} is given up to move less"
    )
