"""How much larger a cluster would have to be where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.search.candidates import (
    check_pins,
    meshes,
    microbatch_sizes,
    recompute_sets,
    virtual_stages,
    with_kernel,
)
from autoshard.search.evaluate import draft_parts, evaluations, state_at_least_bytes
from autoshard.search.result import Pins
from autoshard.search.rules import KERNEL_RULES, LAYOUT_RULES, MESH_RULES, Draft, Problem, first_broken

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
    """Some layout that fits on so many nodes, looked for where memory is smallest."""
    larger = problem._replace(cluster=replace(problem.cluster, nodes=nodes))
    capacity = larger.cluster.device.memory_bytes
    try:
        check_pins(larger, pins)
    except AutoshardError:
        return None  # the pinned degrees do not fill so many nodes
    for draft in _frugal(larger, pins):
        if state_at_least_bytes(larger, draft) > capacity:
            continue
        for recompute in reversed(recompute_sets(pins)):
            for one in evaluations(larger, draft, recompute, draft_parts(larger, draft, recompute)):
                if one.memory_bytes <= capacity:
                    return one.strategy
    return None


def _frugal(problem: Problem, pins: Pins) -> Iterator[Draft]:
    """Legal layouts that hold least, most model parallelism first: the smallest microbatch, the fewest chunks."""
    for degrees in sorted(meshes(problem, pins), key=lambda mesh: -mesh.tp * mesh.pp):
        mesh = with_kernel(problem, pins, degrees)
        if first_broken(MESH_RULES, problem, mesh) or first_broken(KERNEL_RULES, problem, mesh):
            continue
        for schedule, vpp in virtual_stages(problem, pins, mesh)[:1]:
            size = microbatch_sizes(problem, pins, mesh)[0]
            draft = mesh._replace(schedule=schedule, num_virtual_stages=vpp, microbatch_size=size)
            if first_broken(LAYOUT_RULES, problem, draft) is None:
                yield draft
