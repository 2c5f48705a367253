"""Layouts that may beat all that are known, with another cut or other recompute sets by stage: bounded, then refined.

With one chunk a rank stage_cuts.py says what is chosen, with several chunks interleaved_recompute.py does.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.backends.problem import Draft
from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.travelling_bytes import FEW_BLOCKS
from autoshard.cost.zero_sharding import State, Unit
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import Choices, Found, best_choice
from autoshard.planner.grid.bounds import (
    after_at_least_s,
    equal_chunks_at_least_s,
    slowest_stage_at_least_s,
    slowest_stage_at_most_s,
)
from autoshard.planner.grid.interleaved_bounds import MixedLeast
from autoshard.planner.grid.interleaved_recompute import InterleavedSets
from autoshard.planner.grid.kind_choices import KindChoices, kinds_at_least_s
from autoshard.planner.grid.kind_chunks import TwoChunkCuts
from autoshard.planner.grid.kind_pairs import ChunkRoom
from autoshard.planner.grid.kind_room import held_at_least_s, may_hold_all, replayed_at_least_s
from autoshard.planner.grid.kind_stage_cuts import KindStageCuts, WeightsApartCuts
from autoshard.planner.grid.kind_stage_rooms import stages_at_least
from autoshard.planner.grid.kind_stage_times import AlternatingTimes, WeightsApartTimes
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.stage_cuts import StageCuts
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.planner.grid.whole import Whole
from autoshard.planner.ranking import Timed, draft_simplicity
from autoshard.rows import anywhere, largest, pieces

ROUNDING = 1e-9
"""Share of a step by which a bound may be off for rounding."""
LONG_S = 1e12
"""Longer than any step takes."""
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
AT_ONCE = 24
"""So many layouts are bounded together by the room of their ranks: more take more memory, and hardly less time."""
KINDS_AT_ONCE = 256
"""So many layouts with several kinds of blocks are bounded together by what these cost, before that."""
MOST_OF_THREE = 14
"""With more blocks on a rank of three chunks, these may have too many contents together."""


class Promise(NamedTuple):
    """A layout that may be faster than what is known.

    at_least_s: no cut and no choice of sets takes less. sets: places of those that stages may choose from. tighter_s:
    gives a higher bound of the same, which takes longer to find; None where it is not known of any.
    """

    at_least_s: float
    whole: Whole
    draft: int
    sets: tuple[int, ...]
    tighter_s: Callable[[], float] | None = None

    @property
    def layout(self) -> Draft:
        """The layout as far as it is decided."""
        return self.whole.drafts.drafts[self.draft]


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


def refine(
    wholes: Iterable[Whole],
    by_stage: bool,
    limit_bytes: float,
    known_s: float,
    in_time: Callable[[], bool],
    least_s: Callable[[Draft], float] = lambda draft: 0.0,
    refused: Callable[[Draft], bool] = lambda draft: False,
    taken_s: float = 0.0,
    effort: Counter[str] | None = None,
    open_s: float = inf,
    one_is_enough: bool = False,
    priced_s: Callable[[], Mapping[Draft, float]] = dict,
) -> Refined:
    """The layouts that beat known_s, by cuts and, with by_stage, by recompute sets that differ from stage to stage.
    least_s: what a draft takes at least, as far as that is known. refused: whether a draft is not taken though it may
    be the fastest; taken_s: seconds of the fastest layout that is taken, where it is not the fastest. Layouts that are
    taken and beat that one are found too. effort: what was spent before on layouts with several chunks, by what it was
    spent on, AT_ONCE for one that was solved, more for one of much effort; that of this call is added.
    open_s: seconds that another layout may take that is left open: of what takes no less nothing is proven, only faster
    ones are looked for. one_is_enough: the first layout that is found is all that is wanted. priced_s: seconds of the
    fastest layout of each draft of which one is priced and fits: with many chunks the bounds of drafts say little, and
    those of which a layout is fastest are solved first."""
    of_free_cuts, of_sets = list[Whole](), list[Whole]()
    for whole in wholes:
        (of_free_cuts if whole.family.cuts_are_free or _is_solved_by_stages(whole) else of_sets).append(whole)
    unseen = [of_free_cuts, of_sets]  # what is solved sooner comes first, and leaves less of the others to bound
    best = _Best(limit_bytes, known_s, max(known_s, taken_s), refused, Counter() if effort is None else effort, open_s)

    def promised(some: Iterable[Whole]) -> list[Queued]:
        below_s = best.taken_s * (1 - ROUNDING)
        return _queued(promising(some, below_s, least_s), by_stage, limit_bytes, best.taken_s, least_s)

    def ended_early() -> Refined:
        left = [one for some in (queue, *map(promised, unseen)) for _, one in some] + best.put_off_promises
        return Refined(best.found, min(best.at_least_s, *(one.at_least_s for one in left)), [])

    queue, is_tight = list[Queued](), known_s < inf
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
    known = priced_s() if best.put_off_promises else {}
    best.put_off_promises.sort(key=lambda one: known.get(one.layout, inf))
    while best.put_off_promises and not (one_is_enough and best.found):
        if not in_time():
            return ended_early()
        promise = best.put_off_promises.pop(0)
        if not best.passes(promise):
            best.solve(promise, known.get(promise.layout, 0.0) / MOST_GAINED)
    return best.refined()


class _Best:
    """The layouts that a refinement has found so far, and what the others take at least. Mutable. The arguments are
    those of `refine`; at_least_s: of layouts that were left open."""

    def __init__(
        self,
        limit_bytes: float,
        known_s: float,
        taken_s: float,
        refused: Callable[[Draft], bool],
        effort: Counter[str],
        open_s: float,
    ):
        self._limit_bytes, self._best_s, self.taken_s = limit_bytes, known_s, taken_s
        self.at_least_s = min(known_s, open_s)
        self._refused, self._effort = refused, effort
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
    layout. least_s: as of `refine`."""
    found = [
        (whole.drafts.drafts[promise.draft], promise)
        for whole in wholes
        for promise in _promises(whole, by_stage, limit_bytes, known_s)
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
    return _is_chunked(whole) and not _is_solved_by_paths(whole)


def fastest_of(promise: Promise, limit_bytes: float, below_s: float) -> Timed | None:
    """The fastest layout of a promise, None where it takes below_s seconds or more."""
    found = _fastest(promise.whole, promise.draft, promise.sets, limit_bytes, below_s)
    return None if found.strategy is None else Timed(found.step_time_s, found.strategy)


def _is_solved_by_paths(whole: Whole) -> bool:
    return whole.has_kinds and whole.family.num_virtual_stages == 2 and whole.family.sets_are_free


def _is_solved_by_stages(whole: Whole) -> bool:
    return whole.has_kinds and whole.family.num_virtual_stages == 1 and whole.family.rules.warm_up is not None


def _is_bounded_by_rooms(whole: Whole) -> bool:
    family, layers = whole.family, whole.problem.model.num_hidden_layers
    few = family.num_virtual_stages == 3 and layers <= MOST_OF_THREE * family.pp
    return _is_solved_by_paths(whole) or (few and family.sets_are_free)


def promising(wholes: Iterable[Whole], known_s: float, least_s: Callable[[Draft], float]) -> Iterator[Whole]:
    """The wholes with only those drafts of which it is not known that they take known_s seconds or more. least_s: what
    a draft takes at least."""
    for whole in wholes:
        may = [place for place, draft in enumerate(whole.drafts.drafts) if least_s(draft) < known_s]
        if may:
            yield whole if len(may) == len(whole.drafts.drafts) else whole.only(np.array(may))


def _fastest(
    whole: Whole, draft: int, sets: tuple[int, ...], limit_bytes: float, limit_s: float, open_s: float = inf
) -> Found:
    """The fastest cut and sets of one draft that take less than limit_s. open_s: another draft is left open that may
    take as little."""
    if _is_solved_by_stages(whole):
        cuts = WeightsApartCuts if whole.family.rules.weights_apart else KindStageCuts
        return cuts(whole, draft, limit_bytes, limit_s).best()
    if _is_solved_by_paths(whole):
        return TwoChunkCuts(whole, draft, sets, limit_bytes, limit_s).best(open_s)
    choices: Choices
    if whole.has_kinds:
        choices = KindChoices(whole, draft, sets, limit_bytes)
    else:
        choices = (StageCuts if whole.family.cuts_are_free else InterleavedSets)(whole, draft, sets, limit_bytes)
    return best_choice(choices, limit_s)


def _promises(whole: Whole, by_stage: bool, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    if whole.has_kinds:
        yield from _kind_promises(whole, limit_bytes, known_s)
    elif whole.family.cuts_are_free:
        yield from promises(whole, by_stage, limit_bytes, known_s)
    elif by_stage and whole.family.sets_are_free:
        yield from _mixed_promises(whole, limit_bytes, known_s)


def _kind_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts of models with several kinds of blocks of which some layout may take less than known_s."""
    if whole.family.pp == 1:
        return
    every = np.arange(len(whole.drafts.drafts))
    at_least_s = np.concatenate(
        [_kinds_at_least_s(whole, every[some], limit_bytes, known_s) for some in pieces(len(every), KINDS_AT_ONCE)]
    )
    drafts = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    drafts = drafts[at_least_s[drafts].argsort(kind="stable")]
    # without a known time a bound tells alone what does not fit; that of rooms would then take much memory
    bound = _tighter_bound(whole) if known_s < inf or _is_solved_by_stages(whole) else None
    for rows in pieces(len(drafts), AT_ONCE):
        some = drafts[rows]
        together = None if bound is None else cache(partial(bound, whole, some, limit_bytes, known_s))
        for draft in some.tolist():
            tighter_s = None if together is None else partial(_of, together, draft)
            yield Promise(float(at_least_s[draft]), whole, draft, whole.useful_sets(draft), tighter_s)


def _kinds_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> Array:
    """Seconds of a step at least, by draft, by what blocks of several kinds cost of its ranks' time and memory: known_s
    or more where nothing that takes less fits."""
    at_least_s = kinds_at_least_s(whole, drafts, limit_bytes)
    may = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if len(may) and whole.moves_blocks:
        holds_all = may_hold_all(whole, drafts[may], limit_bytes, known_s)
        at_least_s[may[~holds_all]] = np.inf
        may = may[holds_all]
    if len(may):
        replayed_s = replayed_at_least_s(whole, drafts[may], limit_bytes, known_s)
        at_least_s[may] = kinds_at_least_s(whole, drafts[may], limit_bytes, replayed_s)
    return at_least_s


def _tighter_bound(whole: Whole) -> Callable[[Whole, Array, float, float], dict[int, float]] | None:
    """A function of (whole, drafts, limit_bytes, known_s) that gives a higher bound of several drafts at once; None
    where there is none."""
    if _is_bounded_by_rooms(whole):
        return _rooms_at_least_s
    if _is_solved_by_stages(whole):
        return _stages_at_least_s
    return _held_at_least_s if whole.moves_blocks else None


def _stages_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> dict[int, float]:
    """Seconds of a step at least, by draft, by what each stage takes and has room for, as far as they are below
    known_s."""
    of_family = WeightsApartTimes if whole.family.rules.weights_apart else AlternatingTimes
    times = of_family(whole, drafts, limit_bytes, known_s, stages_at_least)
    return dict(zip(drafts.tolist(), times.at_least_s().tolist(), strict=True))


def _rooms_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> dict[int, float]:
    """Seconds of a step at least, by draft, by what its ranks have room for, as far as they are below known_s."""
    room = ChunkRoom(whole, drafts, np.arange(len(whole.sets)), limit_bytes, known_s)
    if room.at_once < len(drafts):
        parts = (drafts[some] for some in pieces(len(drafts), room.at_once))
        every = (_rooms_at_least_s(whole, some, limit_bytes, known_s) for some in parts)
        return {draft: seconds for found in every for draft, seconds in found.items()}
    return dict(zip(drafts.tolist(), room.steps_s(room.relaxed()).tolist(), strict=True))


def _held_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> dict[int, float]:
    """Seconds of a step at least, by draft, by what blocks cost of its ranks' time and memory, as far as they are below
    known_s."""
    return dict(zip(drafts.tolist(), held_at_least_s(whole, drafts, limit_bytes, known_s).tolist(), strict=True))


def _of(seconds: Callable[[], dict[int, float]], draft: int) -> float:
    return seconds()[draft]


def _mixed_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The promises of `interleaved_promises` that a bound leaves which also knows how much fits."""
    promised = [*interleaved_promises(whole, limit_bytes, known_s)]
    if not promised:
        return
    drafts = np.array([promise.draft for promise in promised])
    at_least_s = MixedLeast(whole, drafts, limit_bytes).steps_s()
    for promise, seconds in zip(promised, at_least_s.tolist(), strict=True):
        if seconds < known_s * (1 - ROUNDING):
            yield promise._replace(at_least_s=max(promise.at_least_s, seconds))


def interleaved_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts of an interleaved family of which some layout may fit and take less than known_s."""
    count, sets = len(whole.drafts.drafts), len(whole.sets)
    parts = whole.least_parts_of(np.arange(count))
    at_least_s = _interleaved_at_least_s(whole, *parts)
    rows = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if not len(rows):
        return
    fits = _least_fits(whole, parts, rows, limit_bytes)
    at_least_s[rows[~fits]] = np.inf
    for row in rows[np.isfinite(at_least_s[rows])].tolist():
        yield Promise(float(at_least_s[row]), whole, row, tuple(range(sets)))


def _least_fits(
    whole: Whole, parts: tuple[PartColumns, PartColumns, PartColumns, State], rows: Array, limit_bytes: float
) -> Array:
    """Whether the ranks of an interleaved family have room, by row, if each number were the least of all sets. parts:
    as `Whole.least_parts_of` has them. rows: some drafts."""
    block, first, last = (part.take(rows) for part in parts[:3])
    state = parts[3].take(rows)
    layers = whole.problem.model.num_hidden_layers // (whole.family.pp * whole.family.num_virtual_stages)
    blocks, precision = np.full(len(rows), layers), whole.problem.training.precision
    free = limit_bytes - whole.problem.cluster.device.reserved_memory_bytes
    ends, hidden_bytes = layouts_ends(whole.family, first, last, state), whole.hidden_bytes(rows)
    holds = whole.family.holds(whole.count[rows])
    fits = np.ones(len(rows), dtype=bool)
    for rank in {0, min(1, whole.family.pp - 1), whole.family.pp - 1}:
        of_rank = rank_rows(whole.family, holds[rank], blocks, rank, block, ends, hidden_bytes)
        fits &= rank_memory(of_rank, state, precision).total <= free
    return fits


def may_fit(whole: Whole, limit_bytes: float) -> Array:
    """Whether some cut and some sets of each draft may fit, by draft; no order of axes needs more memory or less."""
    drafts = np.arange(len(whole.drafts.drafts))
    if whole.has_kinds:
        return np.isfinite(kinds_at_least_s(whole, drafts, limit_bytes)) if whole.family.pp > 1 else drafts >= 0
    if whole.family.cuts_are_free:
        sets = len(whole.sets)
        recompute = np.broadcast_to(np.arange(sets), (len(drafts), sets))
        return _Bounds(whole, np.repeat(drafts, sets).reshape(-1, sets), recompute).has_room(limit_bytes, LONG_S)
    return _least_fits(whole, whole.least_parts_of(drafts), drafts, limit_bytes)


def _interleaved_at_least_s(
    whole: Whole, block: PartColumns, first: PartColumns, last: PartColumns, state: State
) -> Array:
    """Seconds of a step, at least, by draft; parts as `Whole.least_parts_of` has them."""
    pp, vpp, problem, m = whole.family.pp, whole.family.num_virtual_stages, whole.problem, whole.count
    per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    layers = problem.model.num_hidden_layers
    block_s, first_s, last_s = (
        unit_work_s(part, unit, per_parameter)
        for part, unit in ((block, state.block), (first, state.first), (last, state.last))
    )
    chunk_s = 2 * problem.cluster.device.pass_launch_s + layers // (pp * vpp) * block_s
    after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state)
    at_least_s: Array = equal_chunks_at_least_s(pp, vpp, m, chunk_s, first_s, last_s, whole.hop_s) + after_s
    return at_least_s


def promises(whole: Whole, by_stage: bool, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts with free cuts of which some layout may fit and take less than known_s."""
    count, sets = len(whole.drafts.drafts), len(whole.sets)
    draft, recompute = np.repeat(np.arange(count), sets), np.tile(np.arange(sets), count)
    shape = (count, sets) if by_stage else (count * sets, 1)
    layouts = _Bounds(whole, draft.reshape(shape), recompute.reshape(shape))
    at_least_s = layouts.at_least_s()
    rows = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if len(rows):
        rows = rows[_Bounds(whole, layouts.draft[rows], layouts.recompute[rows]).has_room(limit_bytes, known_s)]
    for row in rows.tolist():
        yield Promise(float(at_least_s[row]), whole, int(layouts.draft[row, 0]), tuple(layouts.recompute[row].tolist()))


class _Bounds:
    """Bounds of layouts with free cuts. draft, recompute: places, (layout, set that a stage may choose)."""

    def __init__(self, whole: Whole, draft: Array, recompute: Array):
        self.draft, self.recompute = draft, recompute
        self._whole, problem = whole, whole.problem
        flat = draft.ravel()
        block, first, last, self._state = whole.parts_of(flat, recompute.ravel())
        self._parts = (block, first, last)
        self._launch_s, self._layers = 2 * problem.cluster.device.pass_launch_s, problem.model.num_hidden_layers
        per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)

        def seconds(part: PartColumns, unit: Unit) -> Array:
            return unit_work_s(part, unit, per_parameter).reshape(draft.shape)

        self._block_s = seconds(block, self._state.block)
        self._ends_s = (seconds(first, self._state.first), seconds(last, self._state.last))
        pp, drafts = whole.family.pp, draft[:, 0]
        self._m, self._hop_s = whole.count[drafts], whole.hop_s[drafts]
        self._waits = whole.family.waits_for_all(self._m), whole.family.is_at_once(self._m)
        self._holds = whole.family.holds(whole.count[flat])
        self._between: tuple[list[Array], list[Array]] | None = None
        self._after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state[drafts])
        ends_s = sum(end.min(1) for end in self._ends_s)
        self._work_s = pp * self._launch_s + self._layers * self._block_s.min(1) + ends_s

    def at_least_s(self) -> Array:
        """Seconds of a step, by layout, whatever its cut."""
        pp, work_s = self._whole.family.pp, self._work_s
        seconds: Array = slowest_stage_at_least_s(pp, self._m, work_s, work_s / pp, self._hop_s, *self._waits)
        return seconds + self._after_s

    def has_room(self, limit_bytes: float, known_s: float) -> Array:
        """Whether stages that are no slower than a faster step allows, and fit, can hold all blocks, by layout."""
        pp, m = self._whole.family.pp, self._m
        in_time_s = known_s - self._after_s
        slowest_s = slowest_stage_at_most_s(pp, m, self._work_s, in_time_s, self._hop_s, *self._waits)[:, None]
        room = np.zeros(len(m))
        for rank, fewest in enumerate(self._whole.fewest_of_stages.tolist()):
            ends_s = sum(end for end, has in zip(self._ends_s, (rank == 0, rank == pp - 1), strict=True) if has)
            blocks = np.minimum(
                (slowest_s - self._launch_s - ends_s) / self._block_s, self._fitting(rank, fewest, limit_bytes)
            )
            stage = np.floor(blocks.max(1) + ROUNDING)
            room = np.where(stage >= fewest, room + stage, -np.inf)
        return room >= self._layers

    def _fitting(self, rank: int, fewest: int, limit_bytes: float) -> Array:
        """Blocks that fit on a rank, at most; it has no fewer than `fewest`.

        From a few blocks on memory grows at least evenly with them; fewer, or none, may need less than that line says.
        """
        few = FEW_BLOCKS if self._state.travels is not False else 1
        of_few, of_more, *of_fewer = self._needed_bytes(rank, (few, few + 1, *range(fewest, few)))
        slope = of_more - of_few
        base = of_few - few * slope
        for blocks, needed in enumerate(of_fewer, start=fewest):
            base = np.minimum(base, needed - blocks * slope)
        free = limit_bytes - self._whole.problem.cluster.device.reserved_memory_bytes - base
        return (free / slope).reshape(self.draft.shape)

    def _needed_bytes(self, rank: int, blocks: tuple[int, ...]) -> list[Array]:
        """Bytes that a rank needs with each of these numbers of blocks. Ranks between the ends differ in what is in
        flight, and memory grows evenly with that."""
        first, last = 1, self._whole.family.pp - 2
        if not first < rank < last or self._whole.family.rules.weights_apart:
            return self._needed_on(rank, blocks)
        if self._between is None:
            self._between = self._needed_on(first, blocks), self._needed_on(last, blocks)
        most, own, least = (self._holds[one].in_flight for one in (first, rank, last))
        if anywhere((most == least) & (own != most)):
            return self._needed_on(rank, blocks)
        share = (most - own) / largest(most - least, 1)
        return [of_first + share * (of_last - of_first) for of_first, of_last in zip(*self._between, strict=True)]

    def _needed_on(self, rank: int, blocks: tuple[int, ...]) -> list[Array]:
        whole, flat = self._whole, self.draft.ravel()
        hidden_bytes, precision = whole.hidden_bytes(flat), whole.problem.training.precision
        block, first, last = self._parts
        ends = layouts_ends(whole.family, first, last, self._state)
        of_each = np.array(blocks)[:, None]
        of_rank = rank_rows(whole.family, self._holds[rank], of_each, rank, block, ends, hidden_bytes)
        memory = rank_memory(of_rank, self._state, precision)
        return [*np.broadcast_to(memory.lives + memory.in_work, (len(blocks), len(flat)))]
