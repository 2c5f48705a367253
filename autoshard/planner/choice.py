"""The choice among priced layouts: the fastest that fits, or what toss-ups, the compiler and the path put before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from heapq import merge
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.fit_probability import Level
from autoshard.layout.strategy import Strategy
from autoshard.planner.axis_orders import orders_are_free
from autoshard.planner.beaten_path import Precedent, best_on_path, expected_fastest, precedent, wins
from autoshard.planner.compiling import Compiling, compiling, fastest_that_compiles
from autoshard.planner.priced import Clock, PricedLayouts, ideal_step_time_s, table_of
from autoshard.planner.ranking import Timed, best_of_each_kind, in_order
from autoshard.planner.sets import sets_by_stage
from autoshard.planner.toss_ups import COMPARED, compared, simplest_of_equals
from autoshard.planner.waiting import Waiting
from autoshard.plans.search_result import Pins

if TYPE_CHECKING:
    from autoshard.planner.grid.promises import Promise

BEHIND = 1.02
"""Layouts that take so many times as long as the last of the fastest are looked at in other orders too: runners-up are
taken from them."""


class Choice(NamedTuple):
    """The layouts that a search found. level: how surely they fit. fastest: one of each kind. place: of the one that is
    taken. gap: how much faster another one may be than the first, as a share of its step. layouts: all, those in other
    orders of their axes as far as they may be among the fastest. path, on_path: what is known to have run, and
    the best layout of that; None where there is none. left: what would be taken, were more of it known. graphs: the
    verdicts on compiled graphs, None where there are none. not_compiling: what would be taken, did it compile."""

    level: Level
    fastest: list[Timed]
    place: int
    gap: float
    layouts: PricedLayouts
    path: Precedent | None = None
    on_path: Timed | None = None
    left: Timed | None = None
    graphs: Compiling | None = None
    not_compiling: Timed | None = None

    @property
    def taken(self) -> Timed:
        """The one that is taken."""
        return self.fastest[self.place]


def choose(
    priced: PricedLayouts,
    pins: Pins,
    wanted: Sequence[Level],
    clock: Clock,
    count: int = COMPARED,
    behind: float = inf,
    known: Callable[[Level], Sequence[Timed]] = lambda level: (),
) -> Choice | None:
    """The choice among layouts that fit as surely as is wanted most, else among those that fit less surely; None where
    none fits.

    wanted: levels of memory, the surest first, of no more memory than the layouts were priced for. clock: when it has
    run out, what was found by then is the answer. count: how many of the fastest are wanted. behind: those that take
    more than so many times as long as the first are not wanted. known: some of the layouts that fit at a level, fastest
    first: what a bound says is slower is not looked at.
    """
    path, graphs = precedent(priced.problem, pins), compiling(priced.problem)
    if path is not None:
        behind = inf  # what is taken instead may be further behind

    @cache
    def may_fit() -> bool:
        """Whether other cuts or sets may fit: what is too little at the last level, which has most, is too little."""
        most_bytes = wanted[-1].memory_bytes
        return len(wanted) == 1 or _refined_one(priced, pins, most_bytes, clock.in_time) is not None

    for level in wanted:
        some = known(level)
        choice = _choice_at(priced, _Wanted(level, pins, count, behind, clock, graphs), some, may_fit)
        if choice is not None:
            return _settled(choice, path, graphs, sets_by_stage(pins), clock.in_time, some)
    return None


def one_that_fits(priced: PricedLayouts, pins: Pins, limit_bytes: float) -> Strategy | None:
    """A layout that fits, the fastest of even ones where one of these does; None where none is found."""
    even = next(priced.fastest_first(limit_bytes), None)
    found = _refined_one(priced, pins, limit_bytes, lambda: True) if even is None else even
    return None if found is None else found.strategy


def _refined_one(priced: PricedLayouts, pins: Pins, limit_bytes: float, in_time: Callable[[], bool]) -> Timed | None:
    """A layout with another cut or other sets by stage that fits, mostly not the fastest; None where none is found."""
    from autoshard.planner.grid.refine import Known, refine

    nothing = Known(least_s=priced.at_least_s)
    refined = refine(priced.families(), sets_by_stage(pins), limit_bytes, nothing, in_time, one_is_enough=True)
    return next(iter(refined.found), None)


class _Wanted(NamedTuple):
    """The wishes of a search at one level of memory. most, behind: how many layouts, and how far behind the first, as
    `best_of_each_kind` has them. graphs: the verdicts on compiled ones."""

    level: Level
    pins: Pins
    most: int
    behind: float
    clock: Clock
    graphs: Compiling | None

    @property
    def limit_bytes(self) -> float:
        """Memory of a device that a layout may take."""
        return self.level.memory_bytes


def _choice_at(
    priced: PricedLayouts, wanted: _Wanted, known: Sequence[Timed], may_fit: Callable[[], bool]
) -> Choice | None:
    """The choice among layouts of one level of memory, whatever is passed over; None where none fits. known: some of
    these. may_fit: whether one with another cut or other sets by stage may fit."""
    level, pins, most, behind, clock, graphs = wanted
    of_all, effort = partial(_choice_at, priced, wanted._replace(behind=inf), known, may_fit), Counter[str]()
    below_s = behind * known[0].step_time_s if known else inf
    fastest = _even(priced, wanted, known, below_s)
    at_least_s, unrefined, passed = inf, [priced], list["Promise"]()
    if not fastest and not may_fit():
        return None
    if not fastest:
        fastest, at_least_s, passed = _refined(unrefined.pop(), wanted, fastest, priced.at_least_s, effort)
    if not fastest:
        return None
    if behind < inf and _none_compiles(fastest, graphs):
        return of_all()  # what is taken is further behind
    known_s = BEHIND * fastest[-1].step_time_s if len(fastest) == most else inf
    known_s = min(known_s, behind * fastest[0].step_time_s)
    priced.price_below(known_s)
    others: PricedLayouts | None = None
    if clock.in_time():
        others = _in_other_orders(priced, pins, known_s)
    elif orders_are_free(priced.problem, pins):
        at_least_s = min(at_least_s, ideal_step_time_s(priced.problem))
    if others:
        fastest = _even(others, wanted, fastest, known_s)
        unrefined.append(others)
    for some in unrefined:  # in all orders: to refine takes long, and less where more is known
        fastest, at_least_s, more = _refined(some, wanted, fastest, priced.at_least_s, effort, at_least_s)
        passed += more
    gap = max(0.0, 1 - at_least_s / fastest[0].step_time_s)
    place = simplest_of_equals(priced.problem.cluster, fastest)
    if passed and clock.in_time():
        from autoshard.planner.simpler import simpler_ones

        simpler = simpler_ones(passed, fastest, place, level.memory_bytes)
        if simpler:
            fastest = _with(fastest, simpler, priced.problem, wanted)
            place = simplest_of_equals(priced.problem.cluster, fastest)
    if behind < inf and _none_compiles(fastest, graphs):
        return of_all()  # those that do were left out by now
    every = priced.and_in(others, known_s) if others else priced
    return Choice(level, fastest, place, gap, every)


def _none_compiles(fastest: Sequence[Timed], graphs: Compiling | None) -> bool:
    """Whether each of these has a graph that the compiler is expected to refuse."""
    return graphs is not None and all(graphs.refuses(one.strategy) for one in fastest)


class PassedOver(NamedTuple):
    """The judges of what a search passes over, the same at all speeds and memories. path, graphs: as in Choice. Both
    remember what they have looked at."""

    path: Precedent | None
    graphs: Compiling | None

    def more_against(self, one: Strategy, other: Strategy) -> bool:
        """Whether more is held against one layout than against another: features that nobody is known to have run, or a
        graph that the compiler is expected to refuse."""
        if self.path is not None and len(self.path.unknown(one)) > len(self.path.unknown(other)):
            return True
        return self.graphs is not None and self.graphs.refuses(one) and not self.graphs.refuses(other)


def passed_over(problem: Problem, pins: Pins) -> PassedOver:
    """The judges of what a search of the problem passes over."""
    return PassedOver(precedent(problem, pins), compiling(problem))


def taken_of(problem: Problem, passed: PassedOver, level: Level, ranked: list[Timed]) -> Strategy:
    """The layout that a search would take that knew these alone. ranked: layouts that fit, fastest first."""
    place = simplest_of_equals(problem.cluster, ranked)
    choice = _settled(Choice(level, ranked, place, 0.0, PricedLayouts(problem, [])), *passed)
    return choice.taken.strategy


def _settled(
    choice: Choice,
    path: Precedent | None,
    graphs: Compiling | None,
    by_stage: bool = False,
    in_time: Callable[[], bool] = lambda: True,
    known: Sequence[Timed] = (),
) -> Choice:
    """The choice with what the compiler refuses, and what nobody has run, passed over where that pays. by_stage:
    whether stages may differ in what they recompute. known: as of `_choice_at`."""
    if graphs is not None:
        choice = _by_the_compiler(choice, graphs, choice.layouts)
    return choice if path is None else _by_the_path(choice, path, choice.layouts, by_stage, in_time, known)


def _by_the_compiler(choice: Choice, graphs: Compiling, priced: PricedLayouts) -> Choice:
    """The choice with the fastest layout of which no graph is expected to be refused, where there is one."""
    chosen = choice.taken
    choice = choice._replace(graphs=graphs)
    if not graphs.refuses(chosen.strategy):
        return choice
    limit_bytes = choice.level.memory_bytes
    with priced.only(graphs.parted):
        best = fastest_that_compiles(
            graphs, choice.fastest, lambda below_s: priced.fastest_first(limit_bytes, 0.0, below_s, None, graphs.takes)
        )
    if best is None:
        return choice
    fastest = sorted([*choice.fastest, best], key=_step_time_s) if best not in choice.fastest else choice.fastest
    return choice._replace(fastest=fastest, place=fastest.index(best), not_compiling=chosen)


def _by_the_path(
    choice: Choice,
    path: Precedent,
    priced: PricedLayouts,
    by_stage: bool,
    in_time: Callable[[], bool],
    known: Sequence[Timed] = (),
) -> Choice:
    """The choice with the best layout whose features have run, which wins where the prediction cannot tell. Where it
    wins over the chosen one but not over one of which less is new, that one is taken."""
    chosen, limit_bytes = choice.taken, choice.level.memory_bytes
    if path.known(chosen.strategy):
        return choice._replace(path=path, on_path=chosen)
    fastest = [*merge(choice.fastest, known, key=_step_time_s)]
    best = best_on_path(path, fastest, in_order(priced.fastest_first(limit_bytes, such=path.rows)))
    best = _refined_on_path(path, priced, limit_bytes, best, by_stage, in_time)
    if best is None or not wins(path, chosen, best):
        return choice._replace(path=path, on_path=best)
    off = expected_fastest(path, chosen, compared(choice.fastest))
    taken = best if wins(path, off, best) else off
    fastest = sorted([*choice.fastest, taken], key=_step_time_s) if taken not in choice.fastest else choice.fastest
    return choice._replace(fastest=fastest, place=fastest.index(taken), path=path, on_path=best, left=chosen)


def _refined_on_path(
    path: Precedent,
    priced: PricedLayouts,
    limit_bytes: float,
    best: Timed | None,
    by_stage: bool,
    in_time: Callable[[], bool],
) -> Timed | None:
    """The best layout on the path, by cuts and, with by_stage, by recompute sets that differ from stage to stage, too.
    best: the fastest of even ones; None where none fits."""
    from autoshard.planner.grid.refine import Known, refine
    from autoshard.planner.grid.table import Table

    wholes = priced.wholes
    if not wholes:
        return best
    table = Table(priced.problem, tuple(filter(path.set_is_known, wholes[0].sets)), by_stage)
    for draft in dict.fromkeys(draft for whole in wholes for draft in whole.drafts.drafts):
        if draft.pp > 1 and path.draft_is_known(draft):
            table.add(draft)
    known = Known(inf if best is None else best.step_time_s, least_s=priced.at_least_s)
    refined = refine(table.wholes(), by_stage, limit_bytes, known, in_time)
    better = [one for one in refined.found if path.known(one.strategy)]
    return min(better, key=_step_time_s, default=best)


def _in_other_orders(priced: PricedLayouts, pins: Pins, known_s: float) -> PricedLayouts | None:
    """Layouts in other orders of axes that may take less than known_s seconds, if there are any. Memory does not depend
    on the order, so a layout that fits in one fits in all."""
    problem = priced.problem
    if not orders_are_free(problem, pins):
        return None
    from autoshard.planner.grid.faster_orders import faster_orders
    from autoshard.planner.grid.pairs import Pairs

    table = table_of(problem, pins)
    left, least_s = priced.left_below(known_s), partial(priced.at_least_s, in_any_order=True)
    for draft in faster_orders(problem, priced.families(), pins, known_s, left, least_s, priced.fitting):
        table.add(draft)
    if len(problem.blocks.kinds) == 1:
        chunks = [*table.price()]
        return PricedLayouts(problem, chunks) if chunks else None
    pairs = Pairs(problem)
    pairs.add(table.wholes())
    return PricedLayouts(problem, [], Waiting.for_pairs(pairs)) if pairs.wholes else None


def _even(priced: PricedLayouts, wanted: _Wanted, known: Sequence[Timed], below_s: float) -> list[Timed]:
    """The fastest of each kind, of layouts as they are priced: cut evenly or by balance, with as much recomputed on all
    stages. known: others, fastest first. below_s: layouts that take more are not looked for."""
    fitting = priced.fastest_first(wanted.limit_bytes, below_s=below_s, behind=wanted.behind)
    return best_of_each_kind(merge(known, fitting, key=_step_time_s), wanted.most, wanted.behind)


def _refined(
    priced: PricedLayouts,
    wanted: _Wanted,
    known: list[Timed],
    at_least_s: Callable[[Draft], float],
    effort: Counter[str],
    open_s: float = inf,
) -> tuple[list[Timed], float, list[Promise]]:
    """(the fastest of each kind, of those that are known and of these with other cuts and sets by stage; what no other
    one takes less than; promises that were passed by). known: fastest first. at_least_s: what is known of drafts.
    effort: as of `refine`, which adds to it. open_s: another layout is left open that may take as little."""
    from autoshard.planner.grid.refine import Known, refine

    known_s = known[0].step_time_s if known else inf
    refused = wanted.graphs.refuses if wanted.graphs is not None else lambda draft: False
    taken_s = next((one.step_time_s for one in known if not refused(one.strategy)), known_s)
    priced_s = partial(priced.step_times_s, wanted.limit_bytes)
    before = Known(known_s, refused, taken_s, open_s, at_least_s, priced_s)
    by_stage, in_time = sets_by_stage(wanted.pins), wanted.clock.in_time
    refined = refine(priced.families(), by_stage, wanted.limit_bytes, before, in_time, effort)
    ranked = _with(known, refined.found, priced.problem, wanted)
    return ranked, min(refined.at_least_s, priced.unpriced_at_least_s), refined.passed


def _with(ranked: list[Timed], found: Iterable[Timed], problem: Problem, wanted: _Wanted) -> list[Timed]:
    """The fastest of each kind among these and others, of which those are left out that pins forbid."""
    path = precedent(problem, wanted.pins) if wanted.pins.beaten_path else None
    better = [one for one in found if path is None or path.known(one.strategy)]
    return best_of_each_kind(sorted([*better, *ranked], key=_step_time_s), wanted.most, wanted.behind)


def _step_time_s(one: Timed) -> float:
    return one.step_time_s
