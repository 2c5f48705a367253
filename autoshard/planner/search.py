"""The fastest layout that fits: every legal one is priced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from autoshard.backends.nxd import NXD
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.fit_probability import levels
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.layout.strategy import Strategy
from autoshard.planner.candidates import check_pins
from autoshard.planner.choice import choose
from autoshard.planner.collector import uncollected
from autoshard.planner.first_guess import show_first_guess
from autoshard.planner.kept import Kept
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.no_answer import no_answer
from autoshard.planner.priced import Clock, PricedLayouts, count_priced, count_rest, price_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.runners_up import runners_up
from autoshard.planner.search_words import PROVEN, choice_notes, optimality, path_summary, room_notes
from autoshard.planner.toss_ups import COMPARED, GIVEN_AWAY
from autoshard.plans.search_result import Candidate, Pins, SearchResult
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

if TYPE_CHECKING:
    from autoshard.planner.grid.arrays import Array


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
    priced = price_layouts(problem, pins, tally, clock, exhaustive, legal, sparing=not top)
    behind = inf if top else 1 + GIVEN_AWAY  # nobody asks for more than the best one
    choice = choose(priced, pins, wanted, clock, max(top + 1, COMPARED), behind)
    if choice is None:
        raise no_answer(problem, pins, tally, count_rest(priced, pins, tally, clock), clock.in_time)
    level, fastest, place, gap, *_ = choice
    priced = choice.layouts
    notes = (*room_notes(choice, fit_probability, clock), *choice_notes(choice))
    strategy = fastest[place].strategy
    best = Candidate(strategy, estimate(model, training, cluster, strategy))
    others = runners_up(problem, best, fastest, priced.fastest_first(level.memory_bytes), top)
    for chunk in priced.others.chunks if priced.others else ():
        count_priced(tally, cluster.device.memory_bytes, chunk)
    count_rest(priced, pins, tally, clock, (1 - PROVEN) * fastest[0].step_time_s)
    if not tally.fitting:
        tally.keep(1)  # it fits only by uneven cuts or by a recompute set of each stage: one more layout
    words = optimality(problem, pins, fastest, place, gap, clock)
    path = path_summary(choice)
    counts = tally.considered, tally.fitting, tally.rejections()
    gap = 1 - (1 - gap) * fastest[0].step_time_s / fastest[place].step_time_s
    return Searched(best, others, *counts, words, notes, path, priced, fastest[0].strategy, gap=gap)


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
    """A result with every layout that was priced on the way; layouts that a bound ruled out are not among them. priced:
    by the exact search; table_of_other: by another one, which gives them as columns. fastest: the fastest layout that
    fits, which `best` is too unless something was put before its time."""

    priced: PricedLayouts | None = field(default=None, compare=False, repr=False)
    fastest: Strategy | None = field(default=None, compare=False, repr=False)
    table_of_other: Callable[[], dict[str, Array]] | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle and copy: the columns in place of the prices, which can go on to be searched."""
        return {**self.__dict__, "priced": None, "table_of_other": partial(dict, self.columns())}

    def columns(self) -> dict[str, Array]:
        """The layouts that were priced, as `priced_columns` has them, with the prices that chose among them; the best
        one and the runners-up are among them, whatever their cuts are."""
        from autoshard.planner.priced_columns import priced_columns

        if self.table_of_other is not None:
            return self.table_of_other()
        assert self.priced is not None, "a search keeps what it priced"
        return priced_columns(self.priced, {one.strategy: one.estimate for one in (self.best, *self.runners_up)})


SEARCHED: Kept[Searched] = Kept(2)
"""Results, each with its prices: up to some tens of MB."""
