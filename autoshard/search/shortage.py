"""How much larger a cluster would have to be where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, canonical
from autoshard.layout.strategy import Strategy
from autoshard.search.candidates import (
    check_pins,
    meshes,
    microbatch_sizes,
    variants,
    virtual_stages,
)
from autoshard.search.layouts import state_at_least_bytes
from autoshard.search.result import Pins
from autoshard.search.rules import LAYOUT_RULES, SENDING_RULES, Draft, Problem, first_broken

MOST_NODES = 4096
"""Where the search for a larger cluster ends."""


def smallest_cluster(problem: Problem, pins: Pins) -> tuple[int, Strategy] | None:
    """(nodes, a layout that fits there); None if none of up to MOST_NODES nodes does.

    Doubles the nodes until something fits, then looks at the numbers in between, 16 of them at most.
    """
    nodes, found = problem.cluster.nodes, None
    while found is None and nodes < MOST_NODES:
        nodes *= 2
        found = _fits(problem, pins, nodes)
    if found is None:
        return None
    for fewer in range(nodes // 2, nodes, max(1, nodes // 32)):
        between = _fits(problem, pins, fewer) if fewer > nodes // 2 else None
        if between is not None:
            return fewer, between
    return nodes, found


def _fits(problem: Problem, pins: Pins, nodes: int) -> Strategy | None:
    """The fastest layout that fits on so many nodes, of those that hold least."""
    from autoshard.search.grid.order import fastest_first
    from autoshard.search.grid.table import Table

    larger = problem._replace(cluster=replace(problem.cluster, nodes=nodes))
    try:
        check_pins(larger, pins)
    except AutoshardError:
        return None  # the pinned degrees do not fill so many nodes
    table = Table(larger, (canonical(pins.recompute or FULL_RECOMPUTE),))
    for draft in _frugal(larger, pins):
        table.add(draft)
    found = next(fastest_first([*table.price()], larger.cluster.device.memory_bytes), None)
    return None if found is None else found.strategy


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
