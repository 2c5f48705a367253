"""How much larger a cluster would have to be where nothing fits, or why none would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autoshard.backends.rules import LAYOUT_RULES, SENDING_RULES, Draft, Problem, first_broken
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, canonical
from autoshard.layout.strategy import Strategy
from autoshard.planner.candidates import (
    check_pins,
    meshes,
    microbatch_sizes,
    variants,
    virtual_stages,
)
from autoshard.planner.layouts import state_at_least_bytes
from autoshard.planner.obstacles import ROOM, Obstacles, obstacles
from autoshard.planner.ranking import describe
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes

MOST_NODES = 4096
"""Where the search for a larger cluster ends."""


class Attempt(NamedTuple):
    """One number of nodes with the layouts that hold least. strategy: the fastest that fits. nearest: where none does,
    (bytes, layout) of the smallest one, as far as one is legal and has room for its state."""

    nodes: int
    strategy: Strategy | None = None
    nearest: tuple[float, Strategy] | None = None


def shortage(problem: Problem, pins: Pins) -> str:
    """A clause for the end of an error: the larger cluster on which the model fits, or why none would do."""
    if not problem.cluster.can_have(problem.cluster.nodes + 1):
        return f"no more nodes of {problem.cluster.instance} can work together"
    tried = larger_clusters(problem, pins)
    if tried and (fits := tried[-1].strategy) is not None:
        return f"{tried[-1].nodes:,} nodes would fit ({describe(fits)})"
    no_cluster = f"no cluster of up to {MOST_NODES:,} nodes would do"
    misses = [(*one.nearest, one.nodes) for one in tried if one.nearest is not None]
    if misses:
        needed, strategy, nodes = min(misses, key=lambda one: one[0])
        return f"{no_cluster}: the nearest, {nodes:,} nodes with {describe(strategy)}, needs {format_bytes(needed)}"
    refused = [(_refusal(problem, pins, one.nodes), one.nodes) for one in tried]
    if not refused:
        return no_cluster
    why, nodes = min(refused, key=lambda one: (one[0].broken, -one[1]))
    return f"{no_cluster}: on {nodes:,} nodes {why.text}"


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
    from autoshard.planner.grid.order import fastest_first
    from autoshard.planner.grid.table import Table

    larger = problem._replace(cluster=problem.cluster.with_nodes(nodes))
    try:
        check_pins(larger, pins)
    except AutoshardError:
        return Attempt(nodes)  # the pinned degrees do not fill so many nodes
    table = Table(larger, (canonical(pins.recompute or FULL_RECOMPUTE),))
    for draft in _frugal(larger, pins):
        table.add(draft)
    priced, capacity = [*table.price()], larger.cluster.device.memory_bytes
    fastest = next(fastest_first(priced, capacity), None)
    if fastest is not None:
        return Attempt(nodes, fastest.strategy)
    return Attempt(
        nodes, None, min((one.nearest_miss(capacity) for one in priced), key=lambda one: one[0], default=None)
    )


def _frugal(problem: Problem, pins: Pins) -> Iterator[Draft]:
    """Legal layouts that hold least: the smallest microbatch, the fewest chunks, sequence parallelism and the highest
    stage of ZeRO."""
    for mesh in meshes(problem, pins):
        for schedule, vpp in virtual_stages(problem, pins, mesh)[:1]:
            size = microbatch_sizes(problem, pins, mesh)[0]
            drafts = (
                variant._replace(schedule=schedule, num_virtual_stages=vpp, microbatch_size=size)
                for variant in variants(problem, pins, mesh)[0]
                if state_at_least_bytes(problem, variant) <= problem.cluster.device.memory_bytes
            )
            legal = [one for one in drafts if first_broken((*LAYOUT_RULES, *SENDING_RULES), problem, one) is None]
            if legal:
                yield max(legal, key=lambda one: one.zero)
