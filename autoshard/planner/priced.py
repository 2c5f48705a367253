"""Layouts with their prices, those that may be fastest first: what a bound says is slower is not priced at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from autoshard.backends.problem import Draft
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import model_flops_per_step
from autoshard.planner.layouts import MeshDrafts, legal_layouts
from autoshard.planner.ranking import Timed, degrees_of, describe
from autoshard.planner.rejections import MEMORY, SLOWER, UNPRICED, Tally
from autoshard.planner.sets import recompute_sets, sets_by_stage
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.planner.grid.arrays import Array
    from autoshard.planner.grid.table import Priced, Table, Whole

FEW = 6_000
"""So many layouts, but for recompute sets, are priced sooner than bounded."""
FIRST, MORE = 1_500, 4
"""Of more layouts so many are priced at first, then up to so many times as many as before."""


class Clock:
    """A clock that runs from when it is made. limit_s: seconds after which it has run out."""

    def __init__(self, limit_s: float):
        self.limit_s, self._begin_s = limit_s, perf_counter()

    def in_time(self) -> bool:
        return perf_counter() - self._begin_s < self.limit_s


class Waiting:
    """Ways to use meshes that are priced when no layout is known that is faster than their bounds. Mutable: prices them
    once."""

    def __init__(
        self,
        ways: Sequence[tuple[float, MeshDrafts]] = (),
        price: Callable[[list[MeshDrafts]], list[Priced]] = lambda ways: [],
        in_time: Callable[[], bool] = lambda: True,
        first: float = FIRST,
    ):
        """ways: (seconds that they take at least, the way), rising. price: prices some. in_time: whether it still may.
        first: how many layouts are priced at first."""
        self._ways, self._price, self._in_time = list(ways), price, in_time
        self._place, self._size = 0, first
        self.priced: list[Priced] = []

    @property
    def left(self) -> list[tuple[float, MeshDrafts]]:
        """What is not priced."""
        return self._ways[self._place :]

    def next_s(self) -> float:
        """Seconds that everything that may still be priced takes at least; infinite where there is nothing."""
        return self._ways[self._place][0] if self._place < len(self._ways) and self._in_time() else inf

    def price_more(self, below_s: float) -> list[Priced]:
        """The prices of some more of what may take less than below_s."""
        begin, count = self._place, 0
        while self._place < len(self._ways) and count < self._size and self._ways[self._place][0] <= below_s:
            count += len(self._ways[self._place][1].schedules)
            self._place += 1
        self._size *= MORE
        priced = self._price([way for _, way in self._ways[begin : self._place]])
        self.priced += priced
        return priced


class PricedLayouts:
    """Every legal layout, with its step time and memory as soon as these may matter. waiting: those that are priced
    later. too_large: ways to use a mesh that fit in no memory, whatever else is chosen."""

    def __init__(
        self,
        problem: Problem,
        chunks: Sequence[Priced],
        waiting: Waiting | None = None,
        too_large: Sequence[MeshDrafts] = (),
    ):
        self.problem, self._chunks, self.too_large = problem, list(chunks), too_large
        self.waiting = waiting or Waiting()

    @property
    def chunks(self) -> list[Priced]:
        """What is priced by now."""
        return [*self._chunks, *self.waiting.priced]

    @property
    def unpriced_at_least_s(self) -> float:
        """Seconds that layouts take at least for which there was no time; infinite where there are none."""
        left = self.waiting.left
        if not left or self.waiting.next_s() < inf:
            return inf
        return max(left[0][0], ideal_step_time_s(self.problem))

    @property
    def wholes(self) -> list[Whole]:
        """The bounds and parts that each family of layouts was priced by, each once."""
        return list({id(one.whole): one.whole for one in self.chunks}.values())

    def and_in(self, others: list[Priced]) -> PricedLayouts:
        """These layouts and the others together."""
        if not others:
            return self
        return PricedLayouts(self.problem, [*self._chunks, *others], self.waiting, self.too_large)

    def fastest_first(
        self,
        limit_bytes: float,
        above_bytes: float = 0.0,
        below_s: float = inf,
        such: Callable[[Priced], Array] | None = None,
    ) -> Iterator[Timed]:
        """Layouts that need no more than the limit, and more than `above_bytes`, and may take less than `below_s`.
        such: as of grid.order.fastest_first."""
        from autoshard.planner.grid.order import fastest_first

        streams: list[Iterator[Timed]] = []
        heads: list[tuple[float, int, Timed]] = []

        def follow(place: int) -> None:
            head = next(streams[place], None)
            if head is not None:
                heappush(heads, (head.step_time_s, place, head))

        def add(chunks: list[Priced]) -> None:
            streams.append(fastest_first(chunks, limit_bytes, above_bytes, below_s, such))
            follow(len(streams) - 1)

        known = len(self.waiting.priced)
        add(self.chunks)
        while True:
            first_s = heads[0][0] if heads else below_s
            if self.waiting.next_s() <= first_s:
                self.waiting.price_more(first_s)
            if len(self.waiting.priced) > known:  # another reader may have priced them
                add(self.waiting.priced[known:])
                known = len(self.waiting.priced)
            elif not heads:
                return
            else:
                _, place, head = heappop(heads)
                follow(place)
                yield head


def price_layouts(problem: Problem, pins: Pins, tally: Tally, clock: Clock, exhaustive: bool = False) -> PricedLayouts:
    """The prices of every layout that breaks no rule, as far as there is time; of many, when they are asked for.
    tally: counts what is priced; `count_rest` adds what never was.

    exhaustive: price all, at once.
    """
    from autoshard.planner.grid.mesh_bounds import ways_at_least_s

    legal, capacity = legal_layouts(problem, pins, tally), problem.cluster.device.memory_bytes
    small = [way for way in legal if exhaustive or way.state_bytes <= capacity]
    large = [way for way in legal if not exhaustive and way.state_bytes > capacity]
    all_at_once = exhaustive or sum(len(way.schedules) for way in small) <= FEW
    bounds_s = [0.0] * len(small) if all_at_once else ways_at_least_s(problem, small).tolist()
    order = sorted(range(len(small)), key=bounds_s.__getitem__)
    waiting = Waiting(
        [(bounds_s[place], small[place]) for place in order],
        lambda ways: _price(problem, pins, ways, tally, exhaustive),
        lambda: not tally.fitting or clock.in_time(),
        FIRST if clock.limit_s < inf or not all_at_once else inf,
    )
    if all_at_once:
        while waiting.next_s() < inf:
            waiting.price_more(0.0)
    return PricedLayouts(problem, [], waiting, large)


def count_rest(priced: PricedLayouts, pins: Pins, tally: Tally, clock: Clock) -> None:
    """Count the layouts that were not priced, by the reason why. Where nothing fits, those that hold too much state
    whatever else is chosen are priced as far as they may be the nearest miss."""
    problem, sets_of = priced.problem, table_of(priced.problem, pins).sets_of
    left = priced.waiting.left
    if left:
        bound_s, (_, nearest, _) = left[0]
        count = _layouts([way for _, way in left], sets_of)
        if clock.in_time():
            words = f"{degrees_of(nearest)} takes at least {format_seconds(bound_s)}"
            tally.drop(SLOWER, words, bound_s, count)
        else:
            tally.drop(UNPRICED, f"after {clock.limit_s:g} s", count=count)
    large = sorted(priced.too_large, key=lambda one: one.state_bytes)
    while large and not tally.fitting and large[0].state_bytes < tally.nearest_miss(MEMORY):
        _price(problem, pins, [large.pop(0)], tally)
    if large:
        needed = large[0].state_bytes
        words = f"{degrees_of(large[0].way)} holds {format_bytes(needed)} of parameters and state alone"
        tally.drop(MEMORY, words, needed, _layouts(large, sets_of))


def _layouts(ways: Sequence[MeshDrafts], sets_of: Callable[[Draft], int]) -> int:
    """How many layouts these are, with their recompute sets."""
    counts = Counter((way.pp, *schedule[:2]) for _, way, schedules in ways for schedule in schedules)
    return sum(
        count * sets_of(Draft(1, pp, 1, 1, 1, schedule=schedule, num_virtual_stages=vpp))
        for (pp, schedule, vpp), count in counts.items()
    )


def table_of(problem: Problem, pins: Pins) -> Table:
    from autoshard.planner.grid.table import Table

    return Table(problem, recompute_sets(problem, pins), sets_by_stage(pins))


def ideal_step_time_s(problem: Problem) -> float:
    """Seconds of a step with all devices at their peak and nothing but the model's own products: no layout takes
    less."""
    model, training, cluster, _ = problem
    peak = cluster.world_size * cluster.device.peak_flops_per_s(training.precision.fastest_dtype)
    return model_flops_per_step(model, training) / peak


def _price(
    problem: Problem, pins: Pins, ways: list[MeshDrafts], tally: Tally, exhaustive: bool = False
) -> list[Priced]:
    table = table_of(problem, pins)
    for way in ways:
        smallest = min(size for _, _, size in way.schedules)
        for draft in way.drafts:
            if exhaustive or draft.microbatch_size == smallest or table.has_room(draft):
                table.add(draft)
            else:  # a smaller microbatch is a nearer miss
                tally.drop(MEMORY, "", inf, table.sets_of(draft))
    chunks, capacity = [*table.price()], problem.cluster.device.memory_bytes
    for chunk in chunks:
        fitting, dropped = chunk.pairs(capacity)
        tally.keep(fitting)
        if dropped:
            needed, strategy = chunk.nearest_miss(capacity)
            too_much = format_bytes(needed - capacity)
            words = (
                f"{describe(strategy)} needs {format_bytes(needed)} of {format_bytes(capacity)}, {too_much} too much"
            )
            tally.drop(MEMORY, words, needed, dropped)
    return chunks
