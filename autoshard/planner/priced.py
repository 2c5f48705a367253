"""Layouts with their prices, those that may be fastest first: what a bound says is slower is not priced at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from heapq import heappop, heappush
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from autoshard.backends.problem import Draft
from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import model_flops_per_step
from autoshard.planner.axis_orders import orders_are_free
from autoshard.planner.bounded import Bounded, LayoutBounds, TooLarge
from autoshard.planner.dominated import DOMINATED, undominated
from autoshard.planner.layouts import MeshDrafts, legal_layouts
from autoshard.planner.ranking import Timed, degrees_of, describe
from autoshard.planner.rejections import MEMORY, SLOWER, UNPRICED, Tally
from autoshard.planner.sets import recompute_sets, sets_by_stage
from autoshard.planner.waiting import FEW_FIRST, FIRST, Parted, Waiting, count_layouts
from autoshard.planner.watching import BestSoFar, goes_on, who_is_shown
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.planner.grid.arrays import Array
    from autoshard.planner.grid.pairs import Pairs
    from autoshard.planner.grid.table import Table
    from autoshard.planner.grid.whole import Priced, Whole

FEW = 6_000
"""So many layouts in all orders of axes, but for recompute sets, are priced sooner than bounded."""
UNBOUNDED = 1_000
"""So many that are not bounded are priced at first where time is limited."""
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
        self._families: tuple[int, list[Whole]] | None = None

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

    def left_below(self, seconds: float) -> list[MeshDrafts]:
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

    def families(self) -> list[Whole]:
        """The layouts of `wholes` with those of each family together: who looks at families one by one takes less time
        than it takes to find their parts again."""
        from autoshard.planner.grid.table import Table

        wholes = self.wholes
        if len({whole.family for whole in wholes}) == len(wholes):
            return wholes
        if self._families is None or self._families[0] != len(wholes):
            table = Table(self.problem, wholes[0].sets)
            for draft in dict.fromkeys(draft for whole in wholes for draft in whole.drafts.drafts):
                table.add(draft)
            self._families = len(wholes), [*table.wholes()]
        return self._families[1]

    @property
    def fitting(self) -> set[Draft]:
        """The drafts of which some layout that is priced fits."""
        capacity = self.problem.cluster.device.memory_bytes
        return {draft for one in self.chunks for draft in one.fitting(capacity)}

    def step_times_s(self, limit_bytes: float) -> dict[Draft, float]:
        """Seconds of the fastest layout that is priced of each draft of which one fits."""
        found: dict[Draft, float] = {}
        for one in self.chunks:
            fits = one.memory_bytes <= limit_bytes
            for draft, seconds in zip(one.draft[fits].tolist(), one.step_time_s[fits].tolist(), strict=True):
                key = one.whole.drafts.drafts[draft]
                found[key] = min(seconds, found.get(key, inf))
        return found

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
        behind: float = inf,
    ) -> Iterator[Timed]:
        """Layouts that need no more than the limit, and more than `above_bytes`, and may take less than `below_s`.
        such, takes: as of grid.order.fastest_first. behind: nobody asks for those that take more than so many times as
        long as the first; a sparing Waiting does not price them, and they are left out."""
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
        alone = behind < inf and self.waiting is not None and self.waiting.sparing
        asked_s = inf
        while True:
            first_s = min(heads[0][0] if heads else below_s, asked_s)
            next_s = self.waiting.next_s() if self.waiting else None
            if self.waiting and next_s is not None and next_s <= first_s:
                self.waiting.price_more(first_s, alone)
                if len(self.chunks) == known:
                    continue  # none of those fits; of others that are not bounded yet one may, and be faster
            if len(self.chunks) > known:  # another reader may have priced them
                more = self.chunks[known:]
                known += len(more)
                add(more)
            elif heads and heads[0][0] <= asked_s:
                _, place, head = heappop(heads)
                if alone:
                    asked_s = min(asked_s, behind * head.step_time_s)
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
    sparing: bool = False,
) -> PricedLayouts:
    """The prices of every layout that breaks no rule, as far as there is time; of many, when they are asked for.
    tally: counts what is priced; `count_rest` adds what never was.

    exhaustive: price all, at once. legal: `legal_layouts` of a problem of the same rules, where they are known.
    sparing: as of Waiting.
    """
    from autoshard.planner.grid.arrays import keep_freed_memory
    from autoshard.planner.grid.mesh_bounds import ways_at_least_s
    from autoshard.planner.grid.pairs import Pairs

    keep_freed_memory()
    legal = legal_layouts(problem, pins, tally) if legal is None else legal
    if not exhaustive:
        legal, dominated = undominated(problem, legal)
        for words, several in dominated.items():
            tally.drop(DOMINATED, words, count=count_layouts(several, table_of(problem, pins).sets_of))
    capacity = problem.cluster.device.memory_bytes
    small = [way for way in legal if exhaustive or way.state_bytes <= capacity]
    large = [way for way in legal if not exhaustive and way.state_bytes > capacity]
    orders = len(BACKENDS[problem.backend].axis_orders) if orders_are_free(problem, pins) else 1
    few = exhaustive or orders * sum(len(way.schedules) for way in small) <= FEW
    bounds, has_kinds = LayoutBounds(problem, pins), len(problem.blocks.kinds) > 1
    pairs = Pairs(problem, partial(count_priced, tally, capacity)) if has_kinds and not few else None
    sparing = sparing and not has_kinds  # with kinds every turn takes long
    at_first: float = FEW_FIRST if sparing else FIRST
    if few:  # nothing is known of them
        at_first = inf if clock.limit_s == inf else UNBOUNDED
        ways = [Bounded(0.0, 0.0, 0.0, way) for way in small]
    else:
        known = ways_at_least_s(problem, small)
        of_each = [partial(known.each, place) if sparing else None for place in range(len(small))]
        columns = known.own_s.tolist(), known.any_s.tolist(), small, of_each
        ways = [Bounded(own_s, any_s, 0.0, way, each=each) for own_s, any_s, way, each in zip(*columns, strict=True)]
    waiting = Waiting(
        ways,
        (lambda several, below_s: (several, ())) if few else bounds.of_ways,
        lambda ways: _price(problem, pins, ways, tally, exhaustive, pairs),
        lambda: not tally.fitting or clock.in_time(),
        at_first,
        sparing,
        bounds.in_other_orders,
        pairs,
    )
    waiting.too_large += [TooLarge([way.state_bytes] * len(way.schedules), way) for way in large]
    while few and waiting.next_s() is not None:
        waiting.price_more(inf)
    return PricedLayouts(problem, [], waiting)


def count_rest(priced: PricedLayouts, pins: Pins, tally: Tally, clock: Clock, known_s: float = inf) -> float:
    """Count the layouts that were not priced, by the reason why. Where nothing fits, those that hold too much whatever
    else is chosen are priced as far as they may be the nearest miss, if these are few. known_s: seconds of a step of
    the fastest that is known; what takes no less is ruled out, also where the clock has run out.

    Returns the bytes that each of those needs at least which hold too much and were not priced; infinite without any.
    """
    assert priced.waiting is not None
    problem, sets_of = priced.problem, table_of(priced.problem, pins).sets_of
    for waiting in (one.waiting for one in (priced, priced.others) if one is not None and one.waiting is not None):
        count, fastest, at_least_s = waiting.rest(sets_of)
        if fastest is None:
            continue
        if at_least_s >= known_s or clock.in_time():
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
    words = needs_at_least(first.layouts.way, first.least_bytes, problem)
    tally.drop(MEMORY, words, first.least_bytes, count_layouts([one.layouts for one in too_large], sets_of))
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
        tally.drop(MEMORY, needs_at_least(draft, needed_bytes, priced.problem), needed_bytes, count)
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
                words = f"{degrees_of(draft)}, microbatch {draft.microbatch_size}, has no room for a block and the head"
                tally.drop(MEMORY, words, inf, table.sets_of(draft))
    if pairs is not None:
        pairs.add(table.wholes())
        return []
    chunks = [*table.price()]
    for chunk in chunks:
        count_priced(tally, capacity, chunk)
    return chunks


def count_priced(tally: Tally, capacity: float, chunk: Priced) -> None:
    """Count layouts that are priced together, by whether they fit into so many bytes."""
    fitting, dropped = chunk.pairs(capacity)
    tally.keep(fitting)
    if dropped:
        needed, strategy = chunk.nearest_miss(capacity)
        too_much = format_bytes(needed - capacity)
        words = f"{describe(strategy)} needs {format_bytes(needed)} of {format_bytes(capacity)}, {too_much} too much"
        tally.drop(MEMORY, words, needed, dropped)


def needs_at_least(draft: Draft, needed_bytes: float, problem: Problem) -> str:
    """A layout and what it needs at least, beside what a device has, which such a bound may hardly exceed."""
    needed, has = (format_bytes(count) for count in (needed_bytes, problem.cluster.device.memory_bytes))
    needs = f"more than the {has} that a device has" if needed == has else f"at least {needed} of {has}"
    return f"{degrees_of(draft)} needs {needs}"
