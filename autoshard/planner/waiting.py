"""Layouts that wait: what a bound says is slower than what is known is not priced at all."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from autoshard.backends.problem import Draft
from autoshard.planner.bounded import Bounded, TooLarge
from autoshard.planner.layouts import NO_SCHEDULE, MeshDrafts, Scheduled, together

if TYPE_CHECKING:
    from autoshard.planner.grid.pairs import Pairs
    from autoshard.planner.grid.whole import Priced

FIRST = 80
"""So many of more ways and layouts are looked at first: how fast they are says which others may matter."""
FEW_FIRST = 10
"""So many where nothing is priced but what may be the best (`sparing`)."""
MORE, ENOUGH, MOST = 2, 320, 12
"""Each time at least so many times as many ways as before are looked at, if one is, until these are enough; and at most
so many times as many as at least."""
LEAST = 200
"""So many layouts are then priced together, if one is: fewer take hardly less time. Who asks for the next one goes on,
and gets MORE times as many."""
BEYOND = 1.05
"""Whether layouts fit is not asked where they take so many times as long as what is known, in whatever memory: few of
these are ever priced."""


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
        sparing: bool = False,
        in_other_orders: Callable[[list[MeshDrafts], float], Sequence[Sequence[float]]] | None = None,
        pairs: Pairs | None = None,
    ):
        """ways: every way to use a mesh. layouts: the bounds of the layouts of some ways that may fit, and the others;
        whether they fit is not asked where they take so many seconds in whatever memory. price: prices some. in_time:
        whether it still may. at_once: how many layouts are priced at first. sparing: whether nothing is priced that
        takes longer than what is asked for, where nobody asks for more than the best; otherwise some of that is, too.
        in_other_orders: seconds of a step that single layouts take at least in other orders of axes, in whatever memory
        where that is no less than so many. pairs: where `price` lets layouts wait with each of their recompute sets, if
        it does."""
        self._layouts, self._price, self._in_time, self._at_once = layouts, price, in_time, at_once
        self._least = LEAST
        self.sparing = sparing
        self._in_other_orders, self.pairs = in_other_orders, pairs
        self._ways = deque(sorted(ways, key=_own_s))
        self.any_at_least_s = min((one.any_s for one in self._ways), default=0.0)
        """Seconds that every layout takes at least, in any order of axes."""
        self._bounded: deque[Bounded] = deque()
        self._least_s: dict[Draft, dict[Scheduled, Bounded]] = {}
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
        schedule = draft.schedule, draft.num_virtual_stages, draft.microbatch_size
        known = self._least_s.get(_in_any_order(draft.scheduled(*NO_SCHEDULE)), {}).get(schedule)
        if known is None:
            return 0.0
        return known.any_s if in_any_order or draft.axis_order != known.layouts.way.axis_order else known.own_s

    def _remember(self, one: Bounded) -> None:
        if one.any_s:
            of_way = self._least_s.setdefault(_in_any_order(one.layouts.way), {})
            of_way.update(dict.fromkeys(one.layouts.schedules, one))

    @property
    def left(self) -> list[MeshDrafts]:
        """Layouts that are not priced with any recompute set and may fit, those with the lowest bounds first."""
        return [one.layouts for one in merge(self._ways, self._bounded, key=_own_s)]

    def rest(self, sets_of: Callable[[Draft], int]) -> tuple[int, Draft | None, float]:
        """(how many layouts are not priced and may fit, one that may be the fastest of them or None without any, what
        it takes at least). sets_of: how many recompute sets a draft is priced under."""
        drafts, at_least_s = self.left, self._drafts_s
        count, fastest = count_layouts(drafts, sets_of), drafts[0].way if drafts else None
        if self.pairs is not None:
            pairs, first = self.pairs.left
            count += pairs
            if self.pairs.next_s < at_least_s:
                fastest, at_least_s = first, self.pairs.next_s
        return count, fastest, at_least_s

    def left_below(self, seconds: float) -> list[MeshDrafts]:
        """Layouts that are not priced and may take less in other orders of axes."""
        remembered = {id(one): one for of_way in self._least_s.values() for one in of_way.values()}
        known = [one for one in remembered.values() if one.any_s < seconds]
        for one in self._in_all_orders(known, seconds):
            self._remember(one)
        self._bounded = deque(self._in_all_orders(self._bounded, seconds))
        left = [one for one in self._bounded if one.any_s < seconds]
        left += self._of_ways([one for one in self._ways if one.any_s < seconds], seconds)
        for one in left:
            self._remember(one)
        return [one.layouts for one in left]

    def _of_ways(self, ways: Sequence[Bounded], below_s: float) -> Iterator[Bounded]:
        """The layouts of ways that are not bounded one by one, as far as they may take less in other orders."""
        ways = [*filter(None, (one.parted(below_s, in_any_order=True)[0] for one in ways))]
        if not ways or self._in_other_orders is None:
            yield from ways
            return
        every = self._in_other_orders([one.layouts for one in ways], below_s)
        for one, each_s in zip(ways, every, strict=True):
            for schedule, other_s in zip(one.layouts.schedules, each_s, strict=True):
                if other_s < below_s:
                    yield one.such((schedule,))._replace(any_s=max(one.any_s, other_s))

    def _in_all_orders(self, several: Sequence[Bounded], below_s: float) -> list[Bounded]:
        """The same layouts, those that may take less than below_s in any order by what is known of their ways with
        bounds of their own."""
        asked = [one for one in several if one.by_way and one.any_s < below_s]
        if not asked or self._in_other_orders is None:
            return [*several]
        every = self._in_other_orders(ways := together([one.layouts for one in asked]), below_s)
        of_ways = {one.way: iter(each_s) for one, each_s in zip(ways, every, strict=True)}
        known = {}
        for one in asked:  # in the order in which they were put together
            other_s = min(islice(of_ways[one.layouts.way], len(one.layouts.schedules)))
            known[id(one)] = one._replace(any_s=min(one.own_s, max(one.any_s, other_s)), by_way=False)
        return [known.get(id(one), one) for one in several]

    def price_more(self, below_s: float, alone: bool = False) -> None:
        """Price some more of what may take no more than below_s, those with the lowest bounds first. alone: whether
        nothing else is priced, once below_s is known."""
        if self.pairs is None or self._drafts_s <= self.pairs.next_s:
            self._price_drafts(below_s, alone)
        if self.pairs is not None:
            self.priced += self.pairs.price_more(below_s)

    def _price_drafts(self, below_s: float, alone: bool) -> None:
        """Price some more layouts with all of their recompute sets, or let these wait for their turn."""
        at_once = self._at_once if alone else max(self._at_once, FIRST)
        most = at_once if below_s == inf else MOST * (ENOUGH if alone else at_once)
        least = 0 if alone and below_s < inf else at_once
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
        self._at_once = max(at_once, min(MORE * at_once, ENOUGH))
        self._least *= MORE if least == ENOUGH else 1
        self.priced += self._price(together(taken))

    def _next(self, several: deque[Bounded], aside: list[Bounded]) -> list[Bounded]:
        """The first of several, taken out of them, as far as it may be asked for; the rest of it is put aside."""
        first = several.popleft()
        if self._asked is None:
            return [first]
        asked, others = ([first.such(part)] if part else [] for part in self._asked(first.layouts))
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
        self.priced += self._price(together([one.layouts for one in chosen]))
        self.price_pairs()

    def price_pairs(self) -> None:
        """Price what waits with each of its recompute sets."""
        while self.pairs is not None and self.pairs.next_s < inf:
            self.priced += self.pairs.price_more(inf)

    def _bound(self, ways: Sequence[Bounded], below_s: float) -> None:
        """Bound the layouts of some ways one by one; of those that take no less than below_s anyway not whether they
        fit, and not at all where that is known of them: these wait on."""
        parts = [one.parted(below_s) for one in ways]
        ways, left = [one for one, _ in parts if one is not None], [one for _, one in parts if one is not None]
        if left:
            self._ways = deque(sorted([*left, *self._ways], key=_own_s))
        if ways:
            found, too_large = self._layouts(ways, below_s)
            self.too_large += too_large
            self._bounded = deque(sorted([*self._bounded, *found], key=_own_s))


def _own_s(one: Bounded) -> float:
    return one.own_s


def _in_any_order(way: Draft) -> Draft:
    """The way but for its order of axes."""
    return way._replace(axis_order=())


def count_layouts(layouts: Sequence[MeshDrafts], sets_of: Callable[[Draft], int]) -> int:
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
