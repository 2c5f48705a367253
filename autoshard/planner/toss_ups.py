"""Which of the fastest layouts is taken: where the prediction cannot tell two apart, the simpler one."""

from __future__ import annotations

from itertools import takewhile

from autoshard.backends.problem import Draft
from autoshard.cost.interval import toss_up
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.planner.ranking import Timed, kind
from autoshard.schedules import NXD_SCHEDULES
from autoshard.spec.cluster import Cluster

COMPARED = 6
"""So many kinds of the fastest layouts are compared."""
GIVEN_AWAY = 0.01
"""Predicted share of a step that may be lost for a simpler layout. A choice: intervals of differences are 8 to 30 %
wide, and whoever took the simplest of all within them would give away as much on average as is predicted."""


def simplest_of_equals(cluster: Cluster, ranked: list[Timed]) -> int:
    """The place, in `ranked`, of the simplest layout among those that are a toss-up with the first. ranked: layouts
    that fit, fastest first."""
    fastest, chosen = ranked[0], 0
    for place, layout in enumerate(compared(ranked)):
        if layout.step_time_s > fastest.step_time_s * (1 + GIVEN_AWAY):
            break
        either = toss_up(cluster, fastest.strategy, fastest.step_time_s, layout.strategy, layout.step_time_s)
        if either and choices(layout.strategy) < choices(ranked[chosen].strategy):
            chosen = place
    return chosen


def compared(ranked: list[Timed]) -> list[Timed]:
    """The layouts before the first of another kind than the COMPARED fastest."""
    kinds = [*dict.fromkeys(kind(one.strategy) for one in ranked)][:COMPARED]
    return [*takewhile(lambda one: kind(one.strategy) in kinds, ranked)]


def choices(s: Strategy) -> int:
    """The number of things in a layout that are out of the ordinary: axes, their order, virtual stages, schedule,
    recompute, cuts, what is off."""
    uneven = s.stage_layers != even_stage_layers(sum(s.stage_layers), len(s.stage_layers))
    return choices_of(s) + uneven + len(set(s.recompute)) - 1


def choices_of(s: Strategy | Draft) -> int:
    """The part of `choices` that does not ask how blocks are cut and what they recompute."""
    axes = sum(degree > 1 for degree in (s.tp, s.pp, s.cp, s.ep, s.num_virtual_stages))
    unusual = (
        s.schedule not in NXD_SCHEDULES,
        s.zero != 1,
        s.tp > 1 and not s.sequence_parallel,
        s.etp is not None,
    )
    return axes + sum(unusual) + (s.axis_order != AXIS_ORDER)
