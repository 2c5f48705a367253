"""The fastest layouts among promises: solved in the order of their bounds, until none may beat what is known.

With one chunk a rank stage_cuts.py says what is chosen, with several chunks interleaved_recompute.py does.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple

from autoshard.backends.problem import Draft
from autoshard.planner.grid.best_choice import Choices, Found, best_choice
from autoshard.planner.grid.interleaved_recompute import InterleavedSets
from autoshard.planner.grid.kind_choices import KindChoices
from autoshard.planner.grid.kind_chunks import TwoChunkCuts
from autoshard.planner.grid.kind_stage_cuts import KindStageCuts, WeightsApartCuts
from autoshard.planner.grid.promises import (
    AT_ONCE,
    ROUNDING,
    Promise,
    is_solved_by_paths,
    is_solved_by_stages,
    promises,
    promising,
)
from autoshard.planner.grid.stage_cuts import StageCuts
from autoshard.planner.grid.whole import Whole
from autoshard.planner.ranking import Timed, draft_simplicity

MOST_CHUNKED = 100
"""Layouts with two chunks a rank of several kinds of blocks that are solved, the lowest bounds first: each may take a
tenth of a second, and counts several times where it takes more."""
MOST_IDLE = 50
"""So many where another layout is left open that may take as little: these may be faster than what is known, and prove
nothing. AT_ONCE that are bounded more tightly count as one that is solved. All that were found in the 200 problems of
benchmarks.planner_problems were among the first 21."""
MOST_MANY_CHUNKED = 3
"""So many with more than two chunks a rank, which are not solved by paths but by steps: each may take a second. So many
times AT_ONCE are bounded more tightly where that proves nothing."""
MOST_GAINED = 1.1
"""Steps lead from the fastest layout that is priced to one that is not so many times as fast: up to 6 % was seen. Where
more would be wanted, none are taken."""
PATHS, STEPS, BOUNDS = "paths", "steps", "bounds"
"""Kinds of effort: solving by paths, by steps, and tighter bounds of what is solved by steps."""
Queued = tuple[tuple[float, int], Promise]
"""A promise behind its place in a queue."""


class Refined(NamedTuple):
    """The outcome of a refinement.

    found: layouts, each faster than what was known before, or than what is taken of it. at_least_s: no layout takes
    less than this or than the best one. passed: promises of which it was not asked how fast they are, only whether they
    beat the best one.
    """

    found: list[Timed]
    at_least_s: float
    passed: list[Promise]


class Known(NamedTuple):
    """The layouts that are known before others are refined.

    step_time_s: of the fastest one. refused: whether a draft is not taken though it may be the fastest. taken_s:
    seconds of the fastest one that is taken, where that is not the fastest. open_s: seconds that another one may take
    that is left open: of what takes no less nothing is proven, only faster ones are looked for. least_s: what a draft
    takes at least, as far as that is known. priced_s: seconds of the fastest layout of each draft of which one is
    priced and fits: with many chunks the bounds of drafts say little, and those of which a layout is fastest are solved
    first.
    """

    step_time_s: float = inf
    refused: Callable[[Draft], bool] = lambda draft: False
    taken_s: float = 0.0
    open_s: float = inf
    least_s: Callable[[Draft], float] = lambda draft: 0.0
    priced_s: Callable[[], Mapping[Draft, float]] = dict


NOTHING = Known()


def refine(
    wholes: Iterable[Whole],
    by_stage: bool,
    limit_bytes: float,
    known: Known = NOTHING,
    in_time: Callable[[], bool] = lambda: True,
    effort: Counter[str] | None = None,
    one_is_enough: bool = False,
) -> Refined:
    """The layouts that beat what is known, by cuts and, with by_stage, by recompute sets that differ from stage to
    stage. Of those that are taken, also what beats only the fastest that is taken.

    in_time: whether it may go on. effort: what was spent before on layouts with several chunks, by what it was spent
    on, AT_ONCE for one that was solved, more for one of much effort; that of this call is added. one_is_enough: the
    first layout that is found is all that is wanted.
    """
    of_free_cuts, of_sets = list[Whole](), list[Whole]()
    for whole in wholes:
        (of_free_cuts if whole.family.cuts_are_free or is_solved_by_stages(whole) else of_sets).append(whole)
    unseen = [of_free_cuts, of_sets]  # what is solved sooner comes first, and leaves less of the others to bound
    best = _Best(limit_bytes, known, Counter() if effort is None else effort)

    def promised(some: Iterable[Whole]) -> list[Queued]:
        below_s = best.taken_s * (1 - ROUNDING)
        may = promising(some, below_s, known.least_s)
        return _queued(may, by_stage, limit_bytes, best.taken_s, known.least_s)

    def ended_early() -> Refined:
        left = [one for some in (queue, *map(promised, unseen)) for _, one in some] + best.put_off_promises
        return Refined(best.found, min(best.at_least_s, *(one.at_least_s for one in left)), [])

    queue, is_tight = list[Queued](), known.step_time_s < inf
    while queue or unseen:
        if not queue:
            queue = promised(unseen.pop(0))
            heapify(queue)
            continue
        (_, place), promise = queue[0]
        if best.passes(promise):
            heappop(queue)
            continue
        if not in_time():
            return ended_early()
        if promise.tighter_s is not None and is_tight and not best.is_left_idly(promise):
            promise = best.tighter(promise)
            heapreplace(queue, ((promise.at_least_s, place), promise))
            continue
        heappop(queue)
        if _has_many_chunks(promise.whole):
            best.put_off(promise)
            continue
        is_tight = True  # the first one may be all that is needed; where it does not fit, others may not either
        best.solve(promise)
        if one_is_enough and best.found:
            return best.refined()
    priced_s = known.priced_s() if best.put_off_promises else {}
    best.put_off_promises.sort(key=lambda one: priced_s.get(one.layout, inf))
    while best.put_off_promises and not (one_is_enough and best.found):
        if not in_time():
            return ended_early()
        promise = best.put_off_promises.pop(0)
        if not best.passes(promise):
            best.solve(promise, priced_s.get(promise.layout, 0.0) / MOST_GAINED)
    return best.refined()


class _Best:
    """The layouts that a refinement has found so far, and what the others take at least. Mutable. The arguments are
    those of `refine`; taken_s: of the fastest layout that is taken. at_least_s: of layouts that were left open."""

    def __init__(self, limit_bytes: float, known: Known, effort: Counter[str]):
        self._limit_bytes, self._refused, self._effort = limit_bytes, known.refused, effort
        self._best_s, self.taken_s = known.step_time_s, max(known.step_time_s, known.taken_s)
        self.at_least_s = min(known.step_time_s, known.open_s)
        self.found: list[Timed] = []
        self.put_off_promises: list[Promise] = []
        """Those that wait until all others are solved: until then the lowest bound first, then the lowest price."""
        self._passed: list[Promise] = []

    def refined(self) -> Refined:
        return Refined(self.found, min(self.at_least_s, self._best_s), self._passed)

    def _below_s(self, promise: Promise) -> float:
        """Seconds below which a layout of this promise is wanted."""
        beaten_s = self._best_s if self._refused(promise.layout) else self.taken_s
        return beaten_s * (1 - ROUNDING)

    def passes(self, promise: Promise) -> bool:
        """Whether no layout of this promise is wanted; it is then remembered."""
        if promise.at_least_s < self._below_s(promise):
            return False
        self._passed.append(promise)
        return True

    def put_off(self, promise: Promise) -> None:
        """Solve a promise after all others, if at all."""
        insort(self.put_off_promises, promise, key=lambda one: one.at_least_s)

    def _is_idle(self, promise: Promise) -> bool:
        """Whether nothing can be proven by it: another layout is left open that may take as little, or will be."""
        left = self.put_off_promises[MOST_MANY_CHUNKED:]
        return min(self.at_least_s, left[0].at_least_s if left else inf) <= promise.at_least_s

    def _is_left(self, promise: Promise) -> bool:
        """Whether it is left open: so much was spent on layouts like it."""
        if _has_many_chunks(promise.whole):
            return self._effort[STEPS] >= AT_ONCE * MOST_MANY_CHUNKED
        most = MOST_IDLE if self._is_idle(promise) else MOST_CHUNKED
        return _is_chunked(promise.whole) and self._effort[PATHS] >= AT_ONCE * most

    def is_left_idly(self, promise: Promise) -> bool:
        """Whether a tighter bound is not asked for: nothing can be proven by it, and it will be left open, or so many
        like it were bounded."""
        if _has_many_chunks(promise.whole):
            return self._is_idle(promise) and self._effort[BOUNDS] >= AT_ONCE * MOST_MANY_CHUNKED
        return self._is_idle(promise) and self._is_left(promise)

    def tighter(self, promise: Promise) -> Promise:
        """The promise with its tighter bound."""
        assert promise.tighter_s is not None
        if _is_chunked(promise.whole) and self._is_idle(promise):
            self._effort[BOUNDS if _has_many_chunks(promise.whole) else PATHS] += 1
        return promise._replace(at_least_s=max(promise.at_least_s, promise.tighter_s()), tighter_s=None)

    def solve(self, promise: Promise, hoped_s: float = 0.0) -> None:
        """Look for the fastest layout of a promise, or leave it open. hoped_s: seconds that none is hoped to take less
        than."""
        whole, draft, bound_s = promise.whole, promise.draft, promise.at_least_s
        below_s = self._below_s(promise)
        if self._is_left(promise) or hoped_s > below_s:  # a part of the gap
            self.at_least_s = min(self.at_least_s, bound_s)
            return
        fastest = _fastest(whole, draft, promise.sets, self._limit_bytes, below_s, self.at_least_s)
        if _is_chunked(whole):
            self._effort[STEPS if _has_many_chunks(whole) else PATHS] += AT_ONCE * (1 + fastest.effort)
        if fastest.at_least_s < below_s:
            self.at_least_s = min(self.at_least_s, max(bound_s, fastest.at_least_s))
        if fastest.strategy is None:
            self._passed.append(promise._replace(at_least_s=max(bound_s, fastest.at_least_s)))
            return
        self.found.append(Timed(fastest.step_time_s, fastest.strategy))
        self._best_s = min(self._best_s, fastest.step_time_s)
        if not self._refused(promise.layout):
            self.taken_s = fastest.step_time_s


def _queued(
    wholes: Iterable[Whole], by_stage: bool, limit_bytes: float, known_s: float, least_s: Callable[[Draft], float]
) -> list[Queued]:
    """The promises of these layouts, each with its place in a queue: the lowest bound first, of equal ones the simplest
    layout. least_s: as in Known."""
    found = [
        (whole.drafts.drafts[promise.draft], promise)
        for whole in wholes
        for promise in promises(whole, by_stage, limit_bytes, known_s)
    ]
    found.sort(key=lambda one: draft_simplicity(one[0]))
    # in the order of their own bounds: what else is known of a draft depends on what was priced before
    return [
        ((promise.at_least_s, place), promise._replace(at_least_s=max(promise.at_least_s, least_s(draft))))
        for place, (draft, promise) in enumerate(found)
    ]


def _is_chunked(whole: Whole) -> bool:
    """Whether ranks have several chunks of several kinds of blocks, which take long to solve."""
    return whole.has_kinds and whole.family.num_virtual_stages > 1


def _has_many_chunks(whole: Whole) -> bool:
    """Whether they are not solved by paths."""
    return _is_chunked(whole) and not is_solved_by_paths(whole)


def fastest_of(promise: Promise, limit_bytes: float, below_s: float) -> Timed | None:
    """The fastest layout of a promise, None where it takes below_s seconds or more."""
    found = _fastest(promise.whole, promise.draft, promise.sets, limit_bytes, below_s)
    return None if found.strategy is None else Timed(found.step_time_s, found.strategy)


def _fastest(
    whole: Whole, draft: int, sets: tuple[int, ...], limit_bytes: float, limit_s: float, open_s: float = inf
) -> Found:
    """The fastest cut and sets of one draft that take less than limit_s. open_s: another draft is left open that may
    take as little."""
    if is_solved_by_stages(whole):
        cuts = WeightsApartCuts if whole.family.rules.weights_apart else KindStageCuts
        return cuts(whole, draft, limit_bytes, limit_s).best()
    if is_solved_by_paths(whole):
        return TwoChunkCuts(whole, draft, sets, limit_bytes, limit_s).best(open_s)
    choices: Choices
    if whole.has_kinds:
        choices = KindChoices(whole, draft, sets, limit_bytes)
    else:
        choices = (StageCuts if whole.family.cuts_are_free else InterleavedSets)(whole, draft, sets, limit_bytes)
    return best_choice(choices, limit_s)
