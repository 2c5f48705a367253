"""Layouts with their prices, those that may be fastest first: what a bound says is slower is not priced at all."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from heapq import heappop, heappush, merge
from itertools import accumulate
from math import inf, isnan
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from autoshard.backends.problem import Draft
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import model_flops_per_step
from autoshard.planner.axis_orders import orders_are_free
from autoshard.planner.layouts import MeshDrafts, Scheduled, legal_layouts
from autoshard.planner.ranking import Timed, degrees_of, describe
from autoshard.planner.rejections import MEMORY, SLOWER, UNPRICED, Tally
from autoshard.planner.sets import recompute_sets, sets_by_stage
from autoshard.planner.watching import BestSoFar, goes_on, who_is_shown
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.planner.grid.arrays import Array
    from autoshard.planner.grid.pairs import Pairs
    from autoshard.planner.grid.table import Priced, Table, Whole

FEW = 6_000
"""So many layouts, but for recompute sets, are priced sooner than bounded."""
FIRST = 80
"""So many of more ways and layouts are looked at first: how fast they are says which others may matter."""
MORE, ENOUGH, MOST = 2, 320, 12
"""Each time at least so many times as many ways as before are looked at, if one is, until these are enough; and at most
so many times as many as at least."""
LEAST = 200
"""So many layouts are then priced together, if one is: fewer take hardly less time. Who asks for the next one goes on,
and gets MORE times as many."""
BEYOND = 1.05
"""Whether layouts fit is not asked where they take so many times as long as what is known, in whatever memory: few of
these are ever priced."""
UNBOUNDED = 1_000
"""So many that are not bounded are priced at first where time is limited."""
AT_ONCE = 1 << 14
"""So many are bounded at once in other orders of axes: more would take tens of MB."""
NEAREST, NEAREST_AT_ONCE = 1_000, 100
"""So many layouts that do not fit are priced to find the one that needs least, some at once; of more a bound is told.
"""


class Clock:
    """A clock that runs from when it is made. limit_s: seconds after which it has run out; it also has when who watches
    the search wants it to end."""

    def __init__(self, limit_s: float):
        self.limit_s, self._begin_s = limit_s, perf_counter()

    def in_time(self) -> bool:
        return perf_counter() - self._begin_s < self.limit_s and goes_on()

    @property
    def left_s(self) -> float:
        """Seconds that are left of it."""
        return max(0.0, self.limit_s - (perf_counter() - self._begin_s))

    @property
    def why_ended(self) -> str:
        """'after 2 s', or that somebody wanted it."""
        return f"after {self.limit_s:g} s" if goes_on() else "when it was interrupted"


class Bounded(NamedTuple):
    """Layouts of one way to use a mesh, and what each takes at least: seconds of a step in the way's order of axes and
    in any order, bytes on the fullest rank. by_way: whether any_s is what is known of the whole way, in any memory."""

    own_s: float
    any_s: float
    memory_bytes: float
    layouts: MeshDrafts
    by_way: bool = False


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


Parted = tuple[list[Scheduled], list[Scheduled]]
"""Schedules of one way to use a mesh, in two parts."""


class Waiting:
    """Layouts that are priced when none is known that is faster than their bounds. Mutable: prices them once."""

    def __init__(
        self,
        ways: Iterable[Bounded],
        layouts: Callable[[Sequence[Bounded], float], tuple[Sequence[Bounded], Sequence[TooLarge]]],
        price: Callable[[list[MeshDrafts]], list[Priced]],
        in_time: Callable[[], bool],
        at_once: float = FIRST,
        in_other_orders: Callable[[list[MeshDrafts], float], Sequence[Sequence[float]]] | None = None,
        pairs: Pairs | None = None,
    ):
        """ways: every way to use a mesh. layouts: the bounds of the layouts of some ways that may fit, and the others;
        whether they fit is not asked where they take so many seconds in whatever memory. price: prices some. in_time:
        whether it still may. at_once: how many layouts are priced at first. in_other_orders: seconds of a step that
        single layouts take at least in other orders of axes, in whatever memory where that is no less than so many.
        pairs: where `price` lets layouts wait with each of their recompute sets, if it does."""
        self._layouts, self._price, self._in_time, self._at_once = layouts, price, in_time, at_once
        self._least = LEAST
        self._in_other_orders, self.pairs = in_other_orders, pairs
        self._ways = deque(sorted(ways, key=_own_s))
        self.any_at_least_s = min((one.any_s for one in self._ways), default=0.0)
        """Seconds that every layout takes at least, in any order of axes."""
        self._bounded: deque[Bounded] = deque()
        self._least_s: dict[Draft, Bounded] = {}
        self._asked: Callable[[MeshDrafts], Parted] | None = None
        self._aside: tuple[list[Bounded], list[Bounded]] = [], []
        """Ways and layouts that nobody asks for meanwhile."""
        self.too_large: list[TooLarge] = []
        self.priced: list[Priced] = []

    @staticmethod
    def for_pairs(pairs: Pairs) -> Waiting:
        """Pairs that wait, and nothing else."""
        return Waiting((), lambda ways, below_s: (ways, ()), lambda ways: [], lambda: True, pairs=pairs)

    def next_s(self) -> float | None:
        """Seconds that everything that may still be priced takes at least; None where there is nothing."""
        return self.left_at_least_s if self._in_time() else None

    @property
    def left_at_least_s(self) -> float | None:
        """Seconds that everything that is not priced takes at least; None where all that fits is."""
        least_s = min(self._drafts_s, inf if self.pairs is None else self.pairs.next_s)
        return least_s if least_s < inf else None

    @property
    def _drafts_s(self) -> float:
        """Seconds that the layouts take at least that wait with all of their recompute sets; infinite without any."""
        return min((several[0].own_s for several in (self._ways, self._bounded) if several), default=inf)

    def at_least_s(self, draft: Draft, in_any_order: bool = False) -> float:
        """Seconds of a step, whatever the cut and the recompute sets are, as far as a bound is known. in_any_order:
        whatever the order of axes is, too."""
        known = self._least_s.get(_in_any_order(draft))
        if known is None:
            return 0.0
        return known.any_s if in_any_order or draft.axis_order != known.layouts.way.axis_order else known.own_s

    def _remember(self, one: Bounded) -> None:
        if one.any_s:
            self._least_s.update((_in_any_order(draft), one) for draft in one.layouts.drafts)

    @property
    def left(self) -> list[MeshDrafts]:
        """Layouts that are not priced with any recompute set and may fit, those with the lowest bounds first."""
        return [one.layouts for one in merge(self._ways, self._bounded, key=_own_s)]

    def rest(self, sets_of: Callable[[Draft], int]) -> tuple[int, Draft | None, float]:
        """(how many layouts are not priced and may fit, one that may be the fastest of them or None without any, what
        it takes at least). sets_of: how many recompute sets a draft is priced under."""
        drafts, at_least_s = self.left, self._drafts_s
        count, fastest = _count(drafts, sets_of), drafts[0].way if drafts else None
        if self.pairs is not None:
            pairs, first = self.pairs.left
            count += pairs
            if self.pairs.next_s < at_least_s:
                fastest, at_least_s = first, self.pairs.next_s
        return count, fastest, at_least_s

    def left_below(self, seconds: float) -> list[Draft]:
        """Layouts that are not priced and may take less in other orders of axes."""
        known = [one for one in {id(one): one for one in self._least_s.values()}.values() if one.any_s < seconds]
        for one in self._in_all_orders(known, seconds):
            self._remember(one)
        self._bounded = deque(self._in_all_orders(self._bounded, seconds))
        left = [one for one in self._bounded if one.any_s < seconds]
        left += self._of_ways([one for one in self._ways if one.any_s < seconds], seconds)
        for one in left:
            self._remember(one)
        return [draft for one in left for draft in one.layouts.drafts]

    def _of_ways(self, ways: Sequence[Bounded], below_s: float) -> Iterator[Bounded]:
        """The layouts of ways that are not bounded one by one, as far as they may take less in other orders."""
        if not ways or self._in_other_orders is None:
            yield from ways
            return
        every = self._in_other_orders([one.layouts for one in ways], below_s)
        for one, each_s in zip(ways, every, strict=True):
            for schedule, other_s in zip(one.layouts.schedules, each_s, strict=True):
                if other_s < below_s:
                    layout = one.layouts._replace(schedules=(schedule,))
                    yield one._replace(any_s=max(one.any_s, other_s), layouts=layout)

    def _in_all_orders(self, several: Sequence[Bounded], below_s: float) -> list[Bounded]:
        """The same layouts, those that may take less than below_s in any order by what is known of their ways with
        bounds of their own."""
        asked = [one for one in several if one.by_way and one.any_s < below_s]
        if not asked or self._in_other_orders is None:
            return [*several]
        every = self._in_other_orders([one.layouts for one in asked], below_s)
        known = {
            id(one): one._replace(any_s=min(one.own_s, max(one.any_s, min(each_s))), by_way=False)
            for one, each_s in zip(asked, every, strict=True)
        }
        return [known.get(id(one), one) for one in several]

    def price_more(self, below_s: float) -> None:
        """Price some more of what may take no more than below_s, those with the lowest bounds first."""
        if self.pairs is None or self._drafts_s <= self.pairs.next_s:
            self._price_drafts(below_s)
        if self.pairs is not None:
            self.priced += self.pairs.price_more(below_s)

    def _price_drafts(self, below_s: float) -> None:
        """Price some more layouts with all of their recompute sets, or let these wait for their turn."""
        least = self._at_once
        most = least if below_s == inf else MOST * least
        ways: list[Bounded] = []
        while self._ways and (0 < len(ways) < least or self._ways[0].own_s <= below_s) and len(ways) < most:
            ways += self._next(self._ways, self._aside[0])
        self._bound(ways, BEYOND * below_s)
        taken: list[MeshDrafts] = []
        count = 0
        enough = min(least, LEAST) if least < ENOUGH else self._least
        while self._bounded and (count < enough or self._bounded[0].own_s <= below_s) and count < most:
            for one in self._next(self._bounded, self._aside[1]):
                taken.append(one.layouts)
                count += len(one.layouts.schedules)
                self._remember(one)
        self._at_once = max(least, min(MORE * least, ENOUGH))
        self._least *= MORE if least == ENOUGH else 1
        self.priced += self._price(_together(taken))

    def _next(self, several: deque[Bounded], aside: list[Bounded]) -> list[Bounded]:
        """The first of several, taken out of them, as far as it may be asked for; the rest of it is put aside."""
        first = several.popleft()
        if self._asked is None:
            return [first]
        asked, others = (
            [first._replace(layouts=first.layouts._replace(schedules=part))] if part else []
            for part in self._asked(first.layouts)
        )
        aside += others
        return asked

    @contextmanager
    def only(self, asked: Callable[[MeshDrafts], Parted]) -> Iterator[None]:
        """A context in which nothing else is priced. asked: the schedules of some layouts that may be asked for, and
        the others."""
        self._asked, at_once = asked, self._at_once
        self._at_once = FIRST
        try:
            yield
        finally:
            self._asked, self._at_once = None, at_once
            ways, bounded = self._aside
            self._ways = deque(sorted([*ways, *self._ways], key=_own_s))
            self._bounded = deque(sorted([*bounded, *self._bounded], key=_own_s))
            self._aside = [], []

    def bound_more(self, count: int) -> None:
        """Bound the layouts of so many ways more, those with the lowest bounds."""
        self._bound([self._ways.popleft() for _ in range(min(count, len(self._ways)))], inf)

    @property
    def bounded(self) -> list[Bounded]:
        """Layouts that are bounded one by one and not priced, those with the lowest bounds first."""
        return [*self._bounded]

    def price_these(self, chosen: Sequence[Bounded]) -> None:
        """Price some of `bounded`, whatever their bounds are."""
        known = set(map(id, chosen))
        self._bounded = deque(one for one in self._bounded if id(one) not in known)
        for one in chosen:
            self._remember(one)
        self.priced += self._price(_together([one.layouts for one in chosen]))
        self.price_pairs()

    def price_pairs(self) -> None:
        """Price what waits with each of its recompute sets."""
        while self.pairs is not None and self.pairs.next_s < inf:
            self.priced += self.pairs.price_more(inf)

    def _bound(self, ways: Sequence[Bounded], below_s: float) -> None:
        """Bound the layouts of some ways one by one; of those that take no less than below_s anyway not whether they
        fit."""
        if ways:
            found, too_large = self._layouts(ways, below_s)
            self.too_large += too_large
            self._bounded = deque(sorted([*self._bounded, *found], key=_own_s))


def _own_s(one: Bounded) -> float:
    return one.own_s


def _in_any_order(draft: Draft) -> Draft:
    """The layout but for its order of axes."""
    return draft._replace(axis_order=())


def _together(layouts: Sequence[MeshDrafts]) -> list[MeshDrafts]:
    """The layouts with those of one way in one entry."""
    of_ways: dict[Draft, tuple[float, list[Scheduled]]] = {}
    for state_bytes, way, schedules in layouts:
        of_ways.setdefault(way, (state_bytes, []))[1].extend(schedules)
    return [MeshDrafts(state_bytes, way, schedules) for way, (state_bytes, schedules) in of_ways.items()]


class PricedLayouts:
    """Every legal layout, with its step time and memory as soon as these may matter. waiting: those that are priced
    later; None where all are priced."""

    def __init__(
        self,
        problem: Problem,
        chunks: Sequence[Priced],
        waiting: Waiting | None = None,
        others: PricedLayouts | None = None,
        others_below_s: float = inf,
    ):
        """others: layouts that count as far as they take less than others_below_s."""
        self.problem, self._chunks, self.waiting = problem, list(chunks), waiting
        self.others, self._below_s = others, others_below_s

    @property
    def chunks(self) -> list[Priced]:
        """Layouts that are priced by now."""
        return [*self._chunks, *(self.waiting.priced if self.waiting else ())]

    @property
    def unpriced_at_least_s(self) -> float:
        """Seconds that layouts take at least for which there was no time; infinite where there are none."""
        if self.waiting is None or self.waiting.next_s() is not None or self.waiting.left_at_least_s is None:
            return inf
        return max(self.waiting.left_at_least_s, ideal_step_time_s(self.problem))

    def at_least_s(self, draft: Draft, in_any_order: bool = False) -> float:
        """Seconds of a step of a layout at least, as far as a bound is known: see Waiting.at_least_s."""
        return self.waiting.at_least_s(draft, in_any_order) if self.waiting else 0.0

    def left_below(self, seconds: float) -> list[Draft]:
        """Layouts that are not priced, and may take less in other orders of axes."""
        return self.waiting.left_below(seconds) if self.waiting else []

    def price_below(self, seconds: float) -> None:
        """Price what may take less."""
        while self.waiting and (self.waiting.next_s() or inf) < seconds:
            self.waiting.price_more(seconds)

    def price_pairs(self) -> None:
        """Price layouts with the recompute sets that wait, too."""
        for several in (self, self.others):
            if several is not None and several.waiting is not None:
                several.waiting.price_pairs()

    def only(self, asked: Callable[[MeshDrafts], Parted]) -> AbstractContextManager[None]:
        """A context in which no others are priced: see Waiting.only."""
        return self.waiting.only(asked) if self.waiting else nullcontext()

    def _show(self, best: Timed) -> None:
        show = who_is_shown()
        if show is not None:
            least_s = self.waiting.any_at_least_s if self.waiting else 0.0
            show(BestSoFar(self.problem, best, max(least_s, ideal_step_time_s(self.problem))))

    @property
    def wholes(self) -> list[Whole]:
        """The bounds and parts that each family of layouts was priced by, each once."""
        waiting = self.waiting.pairs.wholes if self.waiting and self.waiting.pairs else []
        return list({id(whole): whole for whole in (*waiting, *(one.whole for one in self.chunks))}.values())

    @property
    def fitting(self) -> set[Draft]:
        """The drafts of which some layout that is priced fits."""
        capacity = self.problem.cluster.device.memory_bytes
        return {draft for one in self.chunks for draft in one.fitting(capacity)}

    def and_in(self, others: PricedLayouts, below_s: float) -> PricedLayouts:
        """These layouts and, as far as they take less than below_s, the others together."""
        return PricedLayouts(self.problem, self._chunks, self.waiting, others, below_s)

    def fastest_first(
        self,
        limit_bytes: float,
        above_bytes: float = 0.0,
        below_s: float = inf,
        such: Callable[[Priced], Array] | None = None,
        takes: Callable[[Priced, int], bool] | None = None,
    ) -> Iterator[Timed]:
        """Layouts that need no more than the limit, and more than `above_bytes`, and may take less than `below_s`.
        such, takes: as of grid.order.fastest_first."""
        from autoshard.planner.grid.order import fastest_first

        streams: list[Iterator[Timed]] = []
        heads: list[tuple[float, int, Timed]] = []

        def follow(place: int) -> None:
            head = next(streams[place], None)
            if head is not None:
                heappush(heads, (head.step_time_s, place, head))

        def add(chunks: list[Priced]) -> None:
            streams.append(fastest_first(chunks, limit_bytes, above_bytes, below_s, such, takes))
            follow(len(streams) - 1)
            if heads and not above_bytes:
                self._show(heads[0][2])

        if self.others:
            most_s = min(below_s, self._below_s)
            others = self.others.fastest_first(limit_bytes, above_bytes, most_s, such, takes)
            streams.append(one for one in others if one.step_time_s < most_s)
            follow(0)
        known = len(self.chunks)
        add(self.chunks)
        while True:
            first_s = heads[0][0] if heads else below_s
            next_s = self.waiting.next_s() if self.waiting else None
            if self.waiting and next_s is not None and next_s <= first_s:
                self.waiting.price_more(first_s)
                if len(self.chunks) == known:
                    continue  # none of those fits; of others that are not bounded yet one may, and be faster
            if len(self.chunks) > known:  # another reader may have priced them
                more = self.chunks[known:]
                known += len(more)
                add(more)
            elif heads:
                _, place, head = heappop(heads)
                follow(place)
                yield head
            elif next_s is None or next_s > first_s:
                return


def price_layouts(
    problem: Problem,
    pins: Pins,
    tally: Tally,
    clock: Clock,
    exhaustive: bool = False,
    legal: Sequence[MeshDrafts] | None = None,
) -> PricedLayouts:
    """The prices of every layout that breaks no rule, as far as there is time; of many, when they are asked for.
    tally: counts what is priced; `count_rest` adds what never was.

    exhaustive: price all, at once. legal: `legal_layouts` of a problem of the same rules, where they are known.
    """
    from autoshard.planner.grid.arrays import keep_freed_memory
    from autoshard.planner.grid.mesh_bounds import layout_bounds, ways_at_least_s
    from autoshard.planner.grid.pairs import Pairs

    keep_freed_memory()
    legal = legal_layouts(problem, pins, tally) if legal is None else legal
    capacity = problem.cluster.device.memory_bytes
    small = [way for way in legal if exhaustive or way.state_bytes <= capacity]
    large = [way for way in legal if not exhaustive and way.state_bytes > capacity]
    few = exhaustive or sum(len(way.schedules) for way in small) <= FEW
    sets, any_order = recompute_sets(problem, pins), orders_are_free(problem, pins)
    at_least_s = [(0.0, 0.0)] * len(small)
    if not few:
        own, other = ways_at_least_s(problem, small)
        at_least_s = [*zip(own.tolist(), other.tolist(), strict=True)]

    def layouts(ways: Sequence[Bounded], below_s: float) -> tuple[Sequence[Bounded], Sequence[TooLarge]]:
        if few:
            return ways, ()
        found: list[Bounded] = []
        too_large: dict[int, tuple[list[float], list[Scheduled]]] = {}
        asked = [one.layouts for one in ways]
        bounds = layout_bounds(problem, asked, sets, capacity, below_s=below_s, in_any_order=any_order)
        for place, schedule, own_s, layout_s, needed in zip(*(column.tolist() for column in bounds), strict=True):
            _, any_s, _, (state_bytes, way, schedules), _ = ways[place]
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

    def in_other_orders(asked: list[MeshDrafts], below_s: float) -> list[list[float]]:
        least_s = [[inf] * len(one.schedules) for one in asked]
        ends = [*accumulate(len(one.schedules) for one in asked)]
        begin = 0
        while begin < len(asked):
            end = max(begin + 1, bisect_right(ends, (ends[begin - 1] if begin else 0) + AT_ONCE))
            bounds = layout_bounds(problem, asked[begin:end], sets, capacity, True, below_s)
            places = zip(bounds.way.tolist(), bounds.schedule.tolist(), bounds.step_time_s.tolist(), strict=True)
            for way, schedule, other_s in places:
                least_s[begin + way][schedule] = other_s
            begin = end
        return least_s

    has_kinds = len(problem.model.kinds) > 1
    pairs = Pairs(problem, partial(_count_priced, tally, capacity)) if has_kinds and not few else None
    at_first: float = FIRST
    if few:  # nothing is known of them
        at_first = inf if clock.limit_s == inf else UNBOUNDED
    waiting = Waiting(
        [Bounded(own_s, any_s, 0.0, way) for (own_s, any_s), way in zip(at_least_s, small, strict=True)],
        layouts,
        lambda ways: _price(problem, pins, ways, tally, exhaustive, pairs),
        lambda: not tally.fitting or clock.in_time(),
        at_first,
        in_other_orders,
        pairs,
    )
    waiting.too_large += [TooLarge([way.state_bytes] * len(way.schedules), way) for way in large]
    while few and waiting.next_s() is not None:
        waiting.price_more(inf)
    return PricedLayouts(problem, [], waiting)


def count_rest(priced: PricedLayouts, pins: Pins, tally: Tally, clock: Clock) -> float:
    """Count the layouts that were not priced, by the reason why. Where nothing fits, those that hold too much whatever
    else is chosen are priced as far as they may be the nearest miss, if these are few.

    Returns the bytes that each of those needs at least which hold too much and were not priced; infinite without any.
    """
    assert priced.waiting is not None
    problem, sets_of = priced.problem, table_of(priced.problem, pins).sets_of
    for waiting in (one.waiting for one in (priced, priced.others) if one is not None and one.waiting is not None):
        count, fastest, at_least_s = waiting.rest(sets_of)
        if fastest is None:
            continue
        if clock.in_time():
            words = f"{degrees_of(fastest)} takes at least {format_seconds(at_least_s)}"
            tally.drop(SLOWER, words, at_least_s, count)
        else:
            tally.drop(UNPRICED, clock.why_ended, count=count)
    pairs_bytes = _count_too_large(priced, tally)
    too_large = priced.waiting.too_large
    if not tally.fitting:
        too_large = _nearest(problem, pins, tally, too_large)
    if not too_large:
        return pairs_bytes
    first = min(too_large, key=lambda one: one.least_bytes)
    words = f"{degrees_of(first.layouts.way)} needs at least {format_bytes(first.least_bytes)}"
    tally.drop(MEMORY, words, first.least_bytes, _count([one.layouts for one in too_large], sets_of))
    return min(first.least_bytes, pairs_bytes)


def _count_too_large(priced: PricedLayouts, tally: Tally) -> float:
    """Count the layouts of which a bound says that they do not fit with one recompute set. Where nothing fits, those
    that may be the nearest miss are priced.

    Returns the bytes that each of the others needs at least; infinite without any.
    """
    pairs = priced.waiting.pairs if priced.waiting else None
    if pairs is None:
        return inf
    if not tally.fitting:
        pairs.price_nearest(lambda: tally.nearest_miss(MEMORY))
    count, draft, needed_bytes = pairs.too_large
    if draft is not None:
        tally.drop(MEMORY, f"{degrees_of(draft)} needs at least {format_bytes(needed_bytes)}", needed_bytes, count)
    return min(needed_bytes, _count_too_large(priced.others, tally) if priced.others else inf)


def _nearest(problem: Problem, pins: Pins, tally: Tally, too_large: Sequence[TooLarge]) -> list[TooLarge]:
    """Layouts that are not priced here: those that may be nearer misses than what is known are, if they are few."""
    known_bytes = tally.nearest_miss(MEMORY)
    apart = sorted((one for several in too_large for one in several.apart()), key=lambda one: one[0])
    if sum(needed < known_bytes for needed, _ in apart) <= NEAREST:
        while apart and apart[0][0] < tally.nearest_miss(MEMORY):
            _price(problem, pins, [layout for _, layout in apart[:NEAREST_AT_ONCE]], tally, exhaustive=True)
            del apart[:NEAREST_AT_ONCE]
    return [TooLarge([needed], layout) for needed, layout in apart]


def _count(layouts: Sequence[MeshDrafts], sets_of: Callable[[Draft], int]) -> int:
    """How many layouts these are, with their recompute sets."""
    lists = {id(schedules): schedules for _, _, schedules in layouts}  # many ways share theirs
    counts: Counter[tuple[int, str, int]] = Counter()
    for (pp, place), count in Counter((way.pp, id(schedules)) for _, way, schedules in layouts).items():
        for schedule, vpp, _ in lists[place]:
            counts[pp, schedule, vpp] += count
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
    problem: Problem,
    pins: Pins,
    ways: list[MeshDrafts],
    tally: Tally,
    exhaustive: bool = False,
    pairs: Pairs | None = None,
) -> list[Priced]:
    """Layouts with all of their recompute sets. pairs: where these wait for their turn; then none is priced yet."""
    table, capacity = table_of(problem, pins), problem.cluster.device.memory_bytes
    for way in ways:
        smallest = min(size for _, _, size in way.schedules)
        for draft in way.drafts:
            if exhaustive or draft.microbatch_size == smallest or table.has_room(draft):
                table.add(draft)
            else:  # a smaller microbatch is a nearer miss
                tally.drop(MEMORY, "", inf, table.sets_of(draft))
    if pairs is not None:
        pairs.add(table.wholes())
        return []
    chunks = [*table.price()]
    for chunk in chunks:
        _count_priced(tally, capacity, chunk)
    return chunks


def _count_priced(tally: Tally, capacity: float, chunk: Priced) -> None:
    """Count layouts that are priced together, by whether they fit into so many bytes."""
    fitting, dropped = chunk.pairs(capacity)
    tally.keep(fitting)
    if dropped:
        needed, strategy = chunk.nearest_miss(capacity)
        too_much = format_bytes(needed - capacity)
        words = f"{describe(strategy)} needs {format_bytes(needed)} of {format_bytes(capacity)}, {too_much} too much"
        tally.drop(MEMORY, words, needed, dropped)
