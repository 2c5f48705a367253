"""A first layout for who watches a search: found in a tenth of a second, before bounds say where the fast ones are."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from autoshard.backends.problem import Problem
from autoshard.planner.layouts import MeshDrafts
from autoshard.planner.priced import ideal_step_time_s, table_of
from autoshard.planner.ranking import Timed
from autoshard.planner.watching import BestSoFar, who_is_shown
from autoshard.plans.search_result import Pins

AT_ONCE, TURNS = 12, 4
"""So many layouts are priced together, so many times: a tenth of a second, two where blocks are of several kinds."""
STATE_SHARE = 0.5
"""Share of the memory that weights and optimizer state may take; the rest is for activations. A choice."""


def show_first_guess(problem: Problem, pins: Pins, legal: Sequence[MeshDrafts], limit_bytes: float) -> None:
    """Show the fastest of a few layouts that fit into limit_bytes, those that split the model least; nothing where
    nobody looks. The search prices them again: what it finds and counts does not depend on them."""
    show = who_is_shown()
    if show is None:
        return
    from autoshard.planner.grid.order import fastest_first

    ways = sorted((one for one in legal if one.state_bytes <= STATE_SHARE * limit_bytes), key=_split)
    best: Timed | None = None
    for begin in range(0, min(len(ways), AT_ONCE * TURNS), AT_ONCE):
        table = table_of(problem, pins)
        for one in ways[begin : begin + AT_ONCE]:
            table.add(one.way.scheduled(*one.schedules[0]))
        first = next(fastest_first([*table.price()], limit_bytes), None)
        if first is not None and first.step_time_s < (inf if best is None else best.step_time_s):
            best = first
            show(BestSoFar(problem, best, ideal_step_time_s(problem)))


def _split(one: MeshDrafts) -> tuple[float, ...]:
    way = one.way
    return (way.tp * way.cp * way.pp, way.tp, way.cp, one.state_bytes)
