"""How much larger a cluster would have to be where nothing fits, or why none would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from autoshard.backends.mesh_rules import tp_is_a_group_size
from autoshard.backends.rules import Draft, KnownRules, Problem
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, canonical
from autoshard.layout.strategy import Strategy
from autoshard.planner.bounded import Bounded
from autoshard.planner.candidates import (
    check_pins,
    meshes,
    microbatch_sizes,
    variants,
    virtual_stages,
    zero_stages,
)
from autoshard.planner.layouts import MeshDrafts, state_at_least_bytes
from autoshard.planner.obstacles import ROOM, Obstacles, obstacles
from autoshard.planner.ranking import Timed, describe
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes

if TYPE_CHECKING:
    from autoshard.planner.grid.table import Priced

MOST_NODES = 4096
"""Where the search for a larger cluster ends."""
AT_ONCE = 24
"""So many layouts are priced at once to find the fastest."""


class Attempt(NamedTuple):
    """One number of nodes with the layouts that hold least, as far as one is legal and has room for its state.
    strategy: the fastest that fits."""

    nodes: int
    strategy: Strategy | None = None
    frugal: Sequence[Bounded] = ()


def shortage(problem: Problem, pins: Pins) -> str:
    """A clause for the end of an error: the larger cluster on which the model fits, or why none would do."""
    tried = larger_clusters(problem, pins)
    found = _larger_one(problem, tried)
    if found is not None:
        return found
    no_cluster = f"no cluster of up to {MOST_NODES:,} nodes would do"
    nearest = _nearest_miss(problem, pins, tried)
    if nearest is not None:
        needed, strategy, nodes = nearest
        return f"{no_cluster}: the nearest, {nodes:,} nodes with {describe(strategy)}, needs {format_bytes(needed)}"
    refused = [(_refusal(problem, pins, one.nodes), one.nodes) for one in tried]
    if not refused:
        return no_cluster
    why, nodes = min(refused, key=lambda one: (one[0].broken, -one[1]))
    return f"{no_cluster}: on {nodes:,} nodes {why.text}"


def larger_one(problem: Problem, pins: Pins) -> str | None:
    """The clause of `shortage`; None where no larger cluster would do: to say why takes as long again."""
    return _larger_one(problem, larger_clusters(problem, pins))


def _larger_one(problem: Problem, tried: Sequence[Attempt]) -> str | None:
    if not problem.cluster.can_have(problem.cluster.nodes + 1):
        return f"no more nodes of {problem.cluster.instance} can work together"
    if tried and (fits := tried[-1].strategy) is not None:
        return f"{tried[-1].nodes:,} nodes would fit ({describe(fits)})"
    return None


def larger_clusters(problem: Problem, pins: Pins) -> list[Attempt]:
    """Attempts with more nodes, up to MOST_NODES; the last one is of the smallest cluster that does, where one does.

    Twice, four times, ... the nodes, and powers of two, until something fits; then 16 numbers in between.
    """
    tried = [Attempt(problem.cluster.nodes)]
    for nodes in filter(problem.cluster.can_have, _sizes(problem.cluster.nodes)):
        tried.append(_attempt(problem, pins, nodes))
        if tried[-1].strategy is not None:
            break
    else:
        return tried[1:]
    *fewer, fits = tried
    step = max(1, (fits.nodes - fewer[-1].nodes) // 16)
    between = (_attempt(problem, pins, nodes) for nodes in range(fewer[-1].nodes + step, fits.nodes, step))
    return [*fewer[1:], next((one for one in between if one.strategy is not None), fits)]


def _sizes(nodes: int) -> list[int]:
    """Rising, more than there are."""
    octaves = range(MOST_NODES.bit_length())
    return sorted({size for one in (1, nodes) for size in (one << k for k in octaves) if nodes < size <= MOST_NODES})


def _refusal(problem: Problem, pins: Pins, nodes: int) -> Obstacles:
    larger = problem._replace(cluster=problem.cluster.with_nodes(nodes))
    try:
        check_pins(larger, pins)
    except AutoshardError as error:
        return Obstacles(1, str(error))
    return obstacles(larger, pins, (ROOM,))


def _attempt(problem: Problem, pins: Pins, nodes: int) -> Attempt:
    larger = _with_nodes(problem, nodes)
    try:
        check_pins(larger, pins)
    except AutoshardError:
        return Attempt(nodes)  # the pinned degrees do not fill so many nodes
    frugal = _bounded(larger, pins, [*_frugal(larger, pins)])
    return Attempt(nodes, _fastest(larger, pins, frugal), frugal)


def _with_nodes(problem: Problem, nodes: int) -> Problem:
    return problem._replace(cluster=problem.cluster.with_nodes(nodes))


def _recompute(pins: Pins) -> tuple[str, ...]:
    return (canonical(pins.recompute or FULL_RECOMPUTE),)


def _bounded(problem: Problem, pins: Pins, ways: list[MeshDrafts]) -> list[Bounded]:
    from autoshard.planner.grid.mesh_bounds import layout_bounds

    if not ways:
        return []
    bounds = layout_bounds(problem, ways, _recompute(pins), problem.cluster.device.memory_bytes)
    columns = (column.tolist() for column in (bounds.step_time_s, bounds.memory_bytes, bounds.way))
    return [Bounded(own_s, 0.0, needed, ways[way]) for own_s, needed, way in zip(*columns, strict=True)]


def _prices(problem: Problem, pins: Pins, several: Sequence[Bounded]) -> list[Priced]:
    from autoshard.planner.grid.table import Table

    table = Table(problem, _recompute(pins))
    for one in several:
        for draft in one.layouts.drafts:
            table.add(draft)
    return [*table.price()]


def _fastest(problem: Problem, pins: Pins, frugal: Sequence[Bounded]) -> Strategy | None:
    """The fastest of these layouts that fits. Those of which a bound says that they do not, or are slower, are not
    priced."""
    from autoshard.planner.grid.order import fastest_first

    ranked = sorted((one for one in frugal if one.own_s < inf), key=lambda one: one.own_s)
    best: Timed | None = None
    for begin in range(0, len(ranked), AT_ONCE):
        if best is not None and best.step_time_s <= ranked[begin].own_s:
            break
        priced = _prices(problem, pins, ranked[begin : begin + AT_ONCE])
        first = next(fastest_first(priced, problem.cluster.device.memory_bytes), None)
        if first is not None and (best is None or first.step_time_s < best.step_time_s):
            best = first
    return None if best is None else best.strategy


def _nearest_miss(problem: Problem, pins: Pins, tried: Sequence[Attempt]) -> tuple[float, Strategy, int] | None:
    """(bytes, layout, nodes) of the smallest layout of attempts of which none fits; None where they have none."""
    ranked = sorted(
        ((bounded, one.nodes) for one in tried for bounded in one.frugal), key=lambda one: one[0].memory_bytes
    )
    nearest: tuple[float, Strategy, int] | None = None
    for bounded, nodes in ranked:
        if nearest is not None and nearest[0] <= bounded.memory_bytes:
            break
        larger = _with_nodes(problem, nodes)
        for priced in _prices(larger, pins, [bounded]):
            miss = (*priced.nearest_miss(larger.cluster.device.memory_bytes), nodes)
            nearest = miss if nearest is None else min(miss, nearest, key=lambda one: one[0])
    return nearest


def _frugal(problem: Problem, pins: Pins) -> Iterator[MeshDrafts]:
    """Legal layouts that hold least: the smallest microbatch, the fewest chunks, sequence parallelism and the highest
    stage of ZeRO."""
    capacity, rules = problem.cluster.device.memory_bytes, KnownRules(problem)

    def may_be_one(mesh: Draft) -> bool:
        if tp_is_a_group_size(problem, mesh) is not None:  # in no order of axes
            return False
        most_shared = mesh._replace(zero=max(zero_stages(problem, pins, mesh)))
        return state_at_least_bytes(problem, most_shared) <= capacity

    for mesh in meshes(problem, pins, may_be_one):
        for schedule, vpp in virtual_stages(problem, pins, mesh)[:1]:
            scheduled = (schedule, vpp, microbatch_sizes(problem, pins, mesh)[0])
            ways = (
                MeshDrafts(state_at_least_bytes(problem, way), way, (scheduled,))
                for way in variants(problem, pins, mesh, rules)[0]
            )
            legal = [one for one in ways if one.state_bytes <= capacity and not _breaks_any(rules, *one.drafts)]
            if legal:
                yield max(legal, key=lambda one: one.way.zero)


def _breaks_any(rules: KnownRules, draft: Draft) -> bool:
    return rules.layout(draft) is not None or rules.sending(draft) is not None
