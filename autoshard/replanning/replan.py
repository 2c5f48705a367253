"""Chooses a layout for other nodes: among those about as fast as the fastest, the one that moves the least state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.backends.rules import Problem, warnings
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.search import search
from autoshard.plans.expert_slots import other_slots
from autoshard.plans.plan import Plan, SearchSummary, make_plan
from autoshard.plans.search_result import Candidate, Pins, SearchResult
from autoshard.replanning.moved import Moved, moved
from autoshard.spec.cluster import Cluster
from autoshard.units import format_bytes

LITTLE = 0.02
"""A layout is considered if it is at most this much slower than the fastest. A guess at what nobody notices, far below
what the cost model can tell apart."""
WORTH = 0.05
"""A slower layout is taken only if it leaves this much more of the training state in place than the fastest does. A
guess."""
TOP = 20
"""How many runners-up are looked at, beside the best layouts that keep degrees of the old one."""
_KEPT_TOGETHER = (("tp", "pp", "cp", "ep", "num_virtual_stages"), ("tp", "pp"), ("tp",), ("pp",))
"""Sets of degrees of the old layout that are tried as pins: state that both layouts place in the same way does not
move."""
_NAMES = {"num_virtual_stages": "vpp", "microbatch_size": "microbatch"}
_COMPARED = ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size", "schedule")


@dataclass(frozen=True)
class Replanned:
    """The result of replanning. plan: for the new number of nodes. fastest: the fastest layout, which may be the plan's
    own. moved, fastest_moved: the state that each of them has to read from elsewhere."""

    plan: Plan
    moved: Moved
    fastest: Candidate
    fastest_moved: Moved


def replan(before: Plan, nodes: int) -> Replanned:
    """A plan for the same model, training, kind of node and pins on another number of nodes.

    Raises AutoshardError where pins contradict each other or no layout is legal, NoLayoutFits where none fits.
    """
    cluster = before.cluster.with_nodes(nodes)
    pins, result, notes = _search(before, cluster)
    fastest = result.best
    limit = fastest.estimate.step_time_s * (1 + LITTLE)
    near = [one for one in _candidates(before, cluster, pins, result) if one.estimate.step_time_s <= limit]
    distances: dict[tuple[object, ...], Moved] = {}
    for one in near:
        key = _placement(one.strategy)
        if key not in distances:
            distances[key] = moved(before, _plan(before, cluster, one))
    chosen = min(near, key=lambda one: (distances[_placement(one.strategy)].moved_bytes, one.estimate.step_time_s))
    distance, fastest_distance = (distances[_placement(one.strategy)] for one in (chosen, fastest))
    if distance.kept_share < fastest_distance.kept_share + WORTH:
        chosen, distance = fastest, fastest_distance
    others = tuple(one for one in (fastest, *result.runners_up) if one.strategy != chosen.strategy)
    plan = make_plan(
        before.model,
        before.training,
        cluster,
        before.backend,
        chosen.strategy,
        chosen.estimate,
        SearchSummary(
            result.considered,
            result.fitting,
            _optimality(result, chosen),
            _fit_probability(before),
            result.rejections,
        ),
        others[:5],
        (
            *notes,
            *_notes(before, cluster, chosen, distance, fastest, fastest_distance),
            *filter(None, [other_slots(before, _plan(before, cluster, chosen))]),
            *warnings(Problem(before.model, before.training, cluster, before.backend), chosen.strategy),
        ),
        pins,
    )
    return Replanned(plan, distance, fastest, fastest_distance)


def _search(before: Plan, cluster: Cluster) -> tuple[Pins, SearchResult, tuple[str, ...]]:
    """Searches with the old plan's pins: (pins, result, notes). A pinned dp is dropped where the search fails with
    it."""
    try:
        return before.pins, _searched(before, cluster, before.pins), ()
    except AutoshardError:
        if before.pins.dp is None:
            raise
    pins = replace(before.pins, dp=None)
    note = f"dp={before.pins.dp} was pinned; on {cluster.nodes:,} nodes it is searched"
    return pins, _searched(before, cluster, pins), (note,)


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


def _optimality(result: SearchResult, chosen: Candidate) -> str:
    if chosen.strategy == result.best.strategy:
        return result.optimality
    return f"within {LITTLE:.0%} of the fastest layout, and of those looked at the one that moves least"


def _notes(
    before: Plan, cluster: Cluster, chosen: Candidate, distance: Moved, fastest: Candidate, fastest_distance: Moved
) -> Iterator[str]:
    old, new = before.strategy, chosen.strategy
    same = [name for name in _COMPARED if getattr(old, name) == getattr(new, name)]
    other = [name for name in _COMPARED if name not in same]
    kept = ", ".join(f"{_NAMES.get(name, name)} {getattr(new, name)}" for name in same)
    changed = ", ".join(f"{_NAMES.get(name, name)} {getattr(old, name)} -> {getattr(new, name)}" for name in other)
    nodes = f"from {before.cluster.nodes:,} to {cluster.nodes:,} nodes"
    yield f"replanned {nodes}; stays: {kept or 'nothing'}; changes: {changed or 'nothing'}"
    yield (
        f"{distance.kept_share:.0%} of the training state is where it was, {format_bytes(distance.moved_bytes)} of "
        f"{format_bytes(distance.total_bytes)} are read from other ranks, if the first nodes are those that stay"
    )
    if new == fastest.strategy:
        yield f"no layout is faster, and none within {LITTLE:.0%} of it keeps {WORTH:.0%} more of the state in place"
        return
    faster = chosen.estimate.step_time_s / fastest.estimate.step_time_s - 1
    yield (
        f"the fastest layout is {faster:.2%} faster and leaves {fastest_distance.kept_share:.0%} where it was: "
        f"up to {LITTLE:.0%} is given up to move less"
    )
