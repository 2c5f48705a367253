"""The fastest layout that fits: every legal one is priced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from heapq import merge
from math import floor, inf
from typing import TYPE_CHECKING, NamedTuple

from autoshard.backends.nxd import NXD
from autoshard.backends.rules import Draft, Problem, chunks_are_alike
from autoshard.cost.estimate import estimate
from autoshard.cost.fit_probability import Level, levels
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.layout.strategy import Strategy
from autoshard.planner.axis_orders import orders_are_free
from autoshard.planner.beaten_path import Precedent, best_on_path, path_notes, precedent, wins
from autoshard.planner.candidates import MOST_UNLIKE_CHUNKS, check_pins
from autoshard.planner.choose import COMPARED, GIVEN_AWAY, simplest_of_equals
from autoshard.planner.collector import uncollected
from autoshard.planner.compiling import Compiling, compile_notes, compiling, fastest_that_compiles
from autoshard.planner.first_guess import show_first_guess
from autoshard.planner.kept import Kept
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.priced import (
    Clock,
    PricedLayouts,
    count_priced,
    count_rest,
    ideal_step_time_s,
    price_layouts,
    table_of,
)
from autoshard.planner.ranking import Timed, best_of_each_kind, describe, in_order
from autoshard.planner.rejections import MEMORY, Tally
from autoshard.planner.runners_up import runners_up
from autoshard.planner.sets import sets_by_stage
from autoshard.planner.waiting import Waiting
from autoshard.plans.search_result import OPTIMAL, Candidate, PathSummary, Pins, SearchResult, not_tried
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec
from autoshard.units import format_bytes

if TYPE_CHECKING:
    from autoshard.planner.grid.refine import Promise

BEHIND = 1.02
"""Layouts that take so many times as long as the last of the fastest are looked at in other orders too: runners-up are
taken from them."""
PROVEN = 1e-6
"""Share of a step below which there is no gap."""


@uncollected()
def search(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    pins: Pins = Pins(),  # noqa: B008  a frozen value
    backend: str = NXD.name,
    top: int = 5,
    exhaustive: bool = False,
    fit_probability: float = FIT_PROBABILITY,
    time_limit_s: float = inf,
) -> Searched:
    """The fastest layout that fits surely enough, and up to `top` other ones; of equals the simplest.

    exhaustive: price also layouts of which a bound says that they cannot fit, or are slower. fit_probability: with
    which it fits at least, as far as there is one. time_limit_s: after which the best one that is known is taken, once
    there is one.

    Raises AutoshardError where pins contradict each other or no layout is legal, NoLayoutFits where none fits in
    memory.
    """
    problem, clock = Problem(model, training, cluster, backend), Clock(time_limit_s)
    check_pins(problem, pins)
    tally = Tally()
    legal, wanted = legal_layouts(problem, pins, tally), levels(cluster, fit_probability)
    show_first_guess(problem, pins, legal, wanted[0].memory_bytes)
    priced = price_layouts(problem, pins, tally, clock, exhaustive, legal)
    behind = inf if top else 1 + GIVEN_AWAY  # nobody asks for more than the best one
    choice = choose(priced, pins, wanted, clock, max(top + 1, COMPARED), behind)
    if choice is None:
        raise _nothing(problem, pins, tally, count_rest(priced, pins, tally, clock))
    level, fastest, place, gap, *_ = choice
    priced = choice.layouts
    notes = (*_room_notes(cluster, priced, fit_probability, level, fastest[0]), *_choice_notes(choice))
    strategy = fastest[place].strategy
    best = Candidate(strategy, estimate(model, training, cluster, strategy))
    others = runners_up(problem, best, fastest, priced.fastest_first(level.memory_bytes), top)
    for chunk in priced.others.chunks if priced.others else ():
        count_priced(tally, cluster.device.memory_bytes, chunk)
    count_rest(priced, pins, tally, clock)
    if not tally.fitting:
        tally.keep(1)  # it fits only by uneven cuts or by a recompute set of each stage: one more layout
    words = _optimality(problem, fastest, place, gap, clock)
    path = _path_summary(choice)
    return Searched(best, others, tally.considered, tally.fitting, tally.rejections(), words, notes, path, priced)


def search_once(
    problem: Problem,
    pins: Pins = Pins(),  # noqa: B008  a frozen value
    top: int = 5,
    exhaustive: bool = False,
    fit_probability: float = FIT_PROBABILITY,
    time_limit_s: float = inf,
) -> Searched:
    """The result of `search`, which this process asks once for each of the last few questions without a time limit.

    Raises what `search` raises.
    """
    how = (top, exhaustive, fit_probability)
    if time_limit_s < inf:
        return search(*problem[:3], pins, problem.backend, *how, time_limit_s)
    known = SEARCHED.known((problem, pins, *how))
    return known or SEARCHED.keep((problem, pins, *how), search(*problem[:3], pins, problem.backend, *how))


@dataclass(frozen=True)
class Searched(SearchResult):
    """A result with every layout that was priced on the way; layouts that a bound ruled out are not among them."""

    priced: PricedLayouts | None = field(default=None, compare=False, repr=False)


SEARCHED: Kept[Searched] = Kept(2)
"""Results, each with its prices: up to some tens of MB."""


class Choice(NamedTuple):
    """The layouts that a search found. level: how surely they fit. fastest: one of each kind. place: of the one that is
    taken. gap: how much faster another one may be than the first, as a share of its step. layouts: all, those in other
    orders of their axes as far as they may be among the fastest. path, on_path: what is known to have run, and
    the best layout of that; None where there is none. left: what would be taken, were its features known. graphs: the
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
) -> Choice | None:
    """The choice among layouts that fit as surely as is wanted most, else among those that fit less surely; None where
    none fits.

    wanted: levels of memory, the surest first, of no more memory than the layouts were priced for. clock: when it has
    run out, what was found by then is the answer. count: how many of the fastest are wanted. behind: those that take
    more than so many times as long as the first are not wanted.
    """
    path, graphs = precedent(priced.problem, pins), compiling(priced.problem)
    if path is not None:
        behind = inf  # what is taken instead may be further behind
    for level in wanted:
        choice = _choice_at(priced, pins, level, clock, count, behind, graphs)
        if choice and graphs and behind < inf and graphs.refuses(choice.taken.strategy):
            choice = _choice_at(priced, pins, level, clock, count, inf, graphs)
        if choice is not None:
            return _settled(choice, path, graphs)
    return None


def _choice_at(
    priced: PricedLayouts,
    pins: Pins,
    level: Level,
    clock: Clock,
    count: int,
    behind: float,
    graphs: Compiling | None,
) -> Choice | None:
    """The choice among layouts of one level of memory, whatever is passed over; None where none fits. The other
    arguments are those of `choose`."""
    how = level.memory_bytes, clock, count, behind, graphs
    fastest, at_least_s, passed = _fastest(priced, pins, *how)
    if not fastest:
        return None
    if graphs and behind < inf and all(graphs.refuses(one.strategy) for one in fastest):
        return _choice_at(priced, pins, level, clock, count, inf, graphs)  # what is taken is further behind
    known_s = BEHIND * fastest[-1].step_time_s if len(fastest) == count else inf
    known_s = min(known_s, behind * fastest[0].step_time_s)
    priced.price_below(known_s)
    others: PricedLayouts | None = None
    if clock.in_time():
        others = _in_other_orders(priced, pins, known_s)
    elif orders_are_free(priced.problem, pins):
        at_least_s = min(at_least_s, ideal_step_time_s(priced.problem))
    if others:
        fastest, others_s, more = _fastest(others, pins, *how, fastest, priced.at_least_s, known_s)
        passed += more
        at_least_s = min(at_least_s, others_s)
    gap = max(0.0, 1 - at_least_s / fastest[0].step_time_s)
    place = simplest_of_equals(priced.problem.cluster, fastest)
    if passed and clock.in_time():
        from autoshard.planner.simpler import simpler_ones

        simpler = simpler_ones(passed, fastest[0].step_time_s, fastest[place], level.memory_bytes)
        if simpler:
            fastest = _with(fastest, simpler, priced.problem, pins, count, behind)
            place = simplest_of_equals(priced.problem.cluster, fastest)
    every = priced.and_in(others, known_s) if others else priced
    return Choice(level, fastest, place, gap, every)


class PassedOver(NamedTuple):
    """The judges of what a search passes over, the same at all speeds and memories. path, graphs: as in Choice. Both
    remember what they have looked at."""

    path: Precedent | None
    graphs: Compiling | None


def passed_over(problem: Problem, pins: Pins) -> PassedOver:
    """The judges of what a search of the problem passes over."""
    return PassedOver(precedent(problem, pins), compiling(problem))


def taken_of(problem: Problem, passed: PassedOver, level: Level, ranked: list[Timed]) -> Strategy:
    """The layout that a search would take that knew these alone. ranked: layouts that fit, fastest first."""
    place = simplest_of_equals(problem.cluster, ranked)
    choice = _settled(Choice(level, ranked, place, 0.0, PricedLayouts(problem, [])), *passed)
    return choice.taken.strategy


def _settled(choice: Choice, path: Precedent | None, graphs: Compiling | None) -> Choice:
    """The choice with what the compiler refuses, and what nobody has run, passed over where that pays."""
    if graphs is not None:
        choice = _by_the_compiler(choice, graphs, choice.layouts)
    return choice if path is None else _by_the_path(choice, path, choice.layouts)


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


def _by_the_path(choice: Choice, path: Precedent, priced: PricedLayouts) -> Choice:
    """The choice with the best layout whose features have run, which wins where the prediction cannot tell."""
    chosen = choice.taken
    rest = in_order(priced.fastest_first(choice.level.memory_bytes, such=path.rows))
    best = chosen if path.known(chosen.strategy) else best_on_path(path, choice.fastest, rest)
    if best is None or not wins(path, chosen, best):
        return choice._replace(path=path, on_path=best)
    fastest = sorted([*choice.fastest, best], key=_step_time_s) if best not in choice.fastest else choice.fastest
    return choice._replace(fastest=fastest, place=fastest.index(best), path=path, on_path=best, left=chosen)


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
    for draft in faster_orders(problem, priced.wholes, pins, known_s, left, least_s, priced.fitting):
        table.add(draft)
    if len(problem.model.kinds) == 1:
        chunks = [*table.price()]
        return PricedLayouts(problem, chunks) if chunks else None
    pairs = Pairs(problem)
    pairs.add(table.wholes())
    return PricedLayouts(problem, [], Waiting.for_pairs(pairs)) if pairs.wholes else None


def _fastest(
    priced: PricedLayouts,
    pins: Pins,
    limit_bytes: float,
    clock: Clock,
    count: int,
    behind: float,
    graphs: Compiling | None,
    known: Sequence[Timed] = (),
    at_least_s: Callable[[Draft], float] | None = None,
    below_s: float = inf,
) -> tuple[list[Timed], float, list[Promise]]:
    """(the fastest of each kind, what no other one takes less than, promises that were passed by). count, behind: as
    `best_of_each_kind` has them. graphs: the verdicts on compiled ones. known: others, fastest first. at_least_s: what
    is known of drafts, by default by the layouts themselves. below_s: layouts that take more are not looked for."""
    from autoshard.planner.grid.refine import refine

    fitting = merge(known, priced.fastest_first(limit_bytes, below_s=below_s), key=_step_time_s)
    ranked = best_of_each_kind(fitting, count, behind)
    known_s = ranked[0].step_time_s if ranked else inf
    bounds_s = at_least_s or priced.at_least_s
    refused = graphs.refuses if graphs is not None else lambda draft: False
    taken_s = next((one.step_time_s for one in ranked if not refused(one.strategy)), known_s)
    by_stage = sets_by_stage(pins)
    refined = refine(priced.wholes, by_stage, limit_bytes, known_s, clock.in_time, bounds_s, refused, taken_s)
    ranked = _with(ranked, refined.found, priced.problem, pins, count, behind)
    return ranked, min(refined.at_least_s, priced.unpriced_at_least_s), refined.passed


def _with(
    ranked: list[Timed], found: Iterable[Timed], problem: Problem, pins: Pins, count: int, behind: float
) -> list[Timed]:
    """The fastest of each kind among these and others, of which those are left out that pins forbid."""
    path = precedent(problem, pins) if pins.beaten_path else None
    better = [one for one in found if path is None or path.known(one.strategy)]
    return best_of_each_kind(sorted([*better, *ranked], key=_step_time_s), count, behind)


def _step_time_s(one: Timed) -> float:
    return one.step_time_s


def _optimality(problem: Problem, fastest: list[Timed], place: int, gap: float, clock: Clock) -> str:
    """A sentence on what is proven about the chosen layout."""
    behind = fastest[place].step_time_s / fastest[0].step_time_s - 1
    but = not_tried(problem.backend) if len(problem.model.kinds) == 1 else _chunks_tried(problem)
    if gap + behind <= PROVEN:
        return OPTIMAL + but
    stopped = "" if clock.in_time() else f"stopped {clock.why_ended}: "
    words = f"{stopped}within {100 * (gap + behind):.2g} % of the optimum within this model, proven{but}"
    if behind <= PROVEN:
        return words
    return f"{words}; it takes {100 * behind:.2g} % longer than the fastest that was found, which a note explains"


def _chunks_tried(problem: Problem) -> str:
    """The choices that a search over blocks of several kinds does not try, in words; cuts and sets by stage it does."""
    if chunks_are_alike(problem):
        return ""
    return f" (pipelines have up to {MOST_UNLIKE_CHUNKS} chunks a rank, or a number that divides its blocks)"


def _room_notes(cluster: Cluster, priced: PricedLayouts, wanted: float, found: Level, fastest: Timed) -> Iterator[str]:
    """Sentences on what the room that is left free costs. wanted: the probability with which the layout was to fit."""
    if found.probability != wanted:
        yield (
            f"room: no layout fits with {_percent(wanted)} probability; chosen among those that fit with at least "
            f"{_percent(found.probability)} probability"
        )
    capacity = cluster.device.memory_bytes
    fuller = next(priced.fastest_first(capacity, found.memory_bytes, fastest.step_time_s), None)
    if fuller is None or fuller.step_time_s >= fastest.step_time_s:
        return
    sooner = 100 * (1 - fuller.step_time_s / fastest.step_time_s)
    fits = _percent(estimate(*priced.problem[:3], fuller.strategy).fits_probability)
    yield (
        f"room: layouts that fit with less than {_percent(found.probability)} are passed over; the fastest of them, "
        f"{describe(fuller.strategy)}, is predicted {sooner:.1f} % faster than any other and fits with {fits} "
        "(--fit-probability)"
    )


def _percent(probability: float) -> str:
    """A probability as text, rounded down: what is said is reached."""
    return f"{floor(100 * probability + 1e-9)} %"


def _path_summary(choice: Choice) -> PathSummary | None:
    path, taken, best = choice.path, choice.taken, choice.on_path
    if path is None:
        return None
    other = best if best is not None and best.strategy != taken.strategy else None
    return PathSummary(
        path.path.generation,
        path.path.results,
        path.unknown(taken.strategy),
        None if other is None else other.strategy,
        0.0 if other is None else float(f"{other.step_time_s:.6g}"),
        None if choice.left is None else choice.left.strategy,
    )


def _choice_notes(choice: Choice) -> Iterator[str]:
    ranked, place = choice.fastest, choice.place
    if choice.path is not None:
        yield from path_notes(choice.path, ranked[place], choice.on_path, choice.left)
    if choice.graphs is not None:
        yield from compile_notes(choice.graphs, ranked[place], choice.not_compiling)
    if place and choice.left is None and choice.not_compiling is None:
        slower = 100 * (ranked[place].step_time_s / ranked[0].step_time_s - 1)
        yield (
            f"toss-up: {describe(ranked[0].strategy)} is predicted {slower:.1f} % faster, less than the model can "
            "tell; the simpler one is chosen"
        )


class NothingLegal(AutoshardError):
    """Every layout breaks a rule. Which rules stand in the way is found when the text is read: nobody reads it where
    another backend has an answer."""

    def __init__(self, problem: Problem, pins: Pins):
        super().__init__(problem, pins)
        self._problem, self._pins = problem, pins

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        from autoshard.planner.obstacles import obstacles

        cluster, fixed = self._problem.cluster, self._pins.fixed
        given = "".join((" with " if fixed else "", " ".join(f"{field}={value}" for field, value in fixed.items())))
        where = f"{self._problem.model.name} on {cluster.nodes} x {cluster.instance}{given}"
        return f"no layout of {where} is legal: {obstacles(self._problem, self._pins).text}"


class NothingFits(NoLayoutFits):
    """No layout fits. Which larger cluster would do, or why none, is found when the text is read."""

    def __init__(self, what: str, problem: Problem, pins: Pins):
        super().__init__(what, problem, pins)
        self._what, self._problem, self._pins = what, problem, pins

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        from autoshard.planner.smallest_cluster import shortage

        return f"{self._what}; {shortage(self._problem, self._pins)}"

    @property
    def without_reasons(self) -> str:
        """The text, but for why no larger cluster would do."""
        from autoshard.planner.smallest_cluster import larger_one

        larger = larger_one(self._problem, self._pins)
        return self._what if larger is None else f"{self._what}; {larger}"


def _nothing(problem: Problem, pins: Pins, tally: Tally, bound_bytes: float) -> AutoshardError:
    """The error of a search without an answer: no layout is legal, or none fits and this is what would. bound_bytes:
    what layouts need at least that were not priced."""
    cluster, name = problem.cluster, problem.model.name
    where = f"{cluster.nodes} x {cluster.instance}"
    if pins.beaten_path and (path := precedent(problem, pins)) is not None:
        return NoLayoutFits(
            f"no layout of {name} on {where} fits whose features are all known to have run on {path.path.name}; "
            "leave beaten_path out, or use more nodes"
        )
    if MEMORY not in tally.counts:
        return NothingLegal(problem, pins)
    needed = tally.nearest_miss(MEMORY)
    at_least = "at least " if bound_bytes <= needed else ""
    what = (
        f"no layout fits {name} on {where}: the smallest needs {at_least}{format_bytes(needed)} a device, "
        f"which has {format_bytes(cluster.device.memory_bytes)}"
    )
    return NothingFits(what, problem, pins)
