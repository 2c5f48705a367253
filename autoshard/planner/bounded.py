"""Layouts that are bounded before they are priced, or found to hold too much."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import inf, isnan
from typing import TYPE_CHECKING, NamedTuple

from autoshard.backends.rules import Problem
from autoshard.planner.axis_orders import orders_are_free
from autoshard.planner.layouts import MeshDrafts, Scheduled
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins

if TYPE_CHECKING:
    from autoshard.planner.grid.mesh_bounds import Each

AT_ONCE = 1 << 14
"""So many are bounded at once in other orders of axes: more would take tens of MB."""


class Bounded(NamedTuple):
    """Layouts of one way to use a mesh, and what each takes at least: seconds of a step in the way's order of axes and
    in any order, bytes on the fullest rank. by_way: whether any_s is what is known of the whole way, in any memory.
    each: finds what is known of the layouts one by one, where that is more."""

    own_s: float
    any_s: float
    memory_bytes: float
    layouts: MeshDrafts
    by_way: bool = False
    each: Callable[[], Each] | None = None

    def such(self, schedules: Sequence[Scheduled]) -> Bounded:
        """Some of the layouts alone."""
        return self._replace(layouts=self.layouts._replace(schedules=schedules), each=None)

    def parted(self, below_s: float, in_any_order: bool = False) -> tuple[Bounded | None, Bounded | None]:
        """(the layouts that may take less than below_s, the others), by what is known of them one by one."""
        if self.each is None:
            return self, None
        each = self.each()
        may, others = each.parted(below_s, in_any_order)
        return self._of(each, may) if others else self, self._of(each, others)

    def _of(self, each: Each, places: list[int]) -> Bounded | None:
        if not places:
            return None
        known, schedules = each.take(places), [self.layouts.schedules[place] for place in places]
        own_s, any_s = float(known.own_s.min()), float(known.any_s.min())
        return self.such(schedules)._replace(own_s=own_s, any_s=any_s, each=lambda: known)


class TooLarge(NamedTuple):
    """Layouts of one way to use a mesh that hold too much. needed_bytes: of each, on the fullest rank, at least."""

    needed_bytes: Sequence[float]
    layouts: MeshDrafts

    @property
    def least_bytes(self) -> float:
        return min(self.needed_bytes)

    def apart(self) -> Iterator[tuple[float, MeshDrafts]]:
        """Each by itself, with what it needs."""
        for needed, schedule in zip(self.needed_bytes, self.layouts.schedules, strict=True):
            yield needed, self.layouts._replace(schedules=(schedule,))


class LayoutBounds:
    """Bounds of the layouts of a problem, those with any of the recompute sets that the pins leave."""

    def __init__(self, problem: Problem, pins: Pins):
        self._problem, self._sets = problem, recompute_sets(problem, pins)
        self._capacity, self._any_order = problem.cluster.device.memory_bytes, orders_are_free(problem, pins)

    def of_ways(self, ways: Sequence[Bounded], below_s: float) -> tuple[list[Bounded], list[TooLarge]]:
        """(the layouts of some ways that may fit, one by one; the others). below_s: whether they fit is not asked where
        they take so many seconds in whatever memory."""
        from autoshard.planner.grid.mesh_bounds import layout_bounds

        found: list[Bounded] = []
        too_large: dict[int, tuple[list[float], list[Scheduled]]] = {}
        asked = [one.layouts for one in ways]
        bounds = layout_bounds(
            self._problem, asked, self._sets, self._capacity, below_s=below_s, in_any_order=self._any_order
        )
        for place, schedule, own_s, layout_s, needed in zip(*(column.tolist() for column in bounds), strict=True):
            any_s, (state_bytes, way, schedules) = ways[place].any_s, ways[place].layouts
            if own_s < inf:
                layout = MeshDrafts(state_bytes, way, (schedules[schedule],))
                by_way = isnan(layout_s)
                found.append(Bounded(own_s, any_s if by_way else layout_s, needed, layout, by_way))
            else:
                several = too_large.setdefault(place, ([], []))
                several[0].append(needed)
                several[1].append(schedules[schedule])
        return found, [
            TooLarge(needed_bytes, ways[place].layouts._replace(schedules=schedules))
            for place, (needed_bytes, schedules) in too_large.items()
        ]

    def in_other_orders(self, asked: Sequence[MeshDrafts], below_s: float) -> list[list[float]]:
        """Seconds of a step of each schedule of some ways at least, in all orders of axes but their own. below_s: as of
        `of_ways`."""
        from autoshard.planner.grid.mesh_bounds import layout_bounds

        least_s = [[inf] * len(one.schedules) for one in asked]
        ends = [*accumulate(len(one.schedules) for one in asked)]
        begin = 0
        while begin < len(asked):
            end = max(begin + 1, bisect_right(ends, (ends[begin - 1] if begin else 0) + AT_ONCE))
            bounds = layout_bounds(self._problem, asked[begin:end], self._sets, self._capacity, True, below_s)
            places = zip(bounds.way.tolist(), bounds.schedule.tolist(), bounds.step_time_s.tolist(), strict=True)
            for way, schedule, other_s in places:
                least_s[begin + way][schedule] = other_s
            begin = end
        return least_s
