"""What a search leaves unpriced, because a bound or the question says that it cannot matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from autoshard.backends.rules import Draft, Problem
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner import layouts
from autoshard.planner.bounded import Bounded, TooLarge
from autoshard.planner.grid.mesh_bounds import Each
from autoshard.planner.grid.promises import promising
from autoshard.planner.grid.whole import Priced
from autoshard.planner.layouts import MeshDrafts, legal_layouts
from autoshard.planner.priced import Clock, PricedLayouts, price_layouts
from autoshard.planner.ranking import Timed, best_of_each_kind
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.planner.search_words import optimality
from autoshard.planner.waiting import FEW_FIRST, FIRST, LEAST, MORE, Parted, Waiting
from autoshard.plans.search_result import OPTIMAL, Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision


def problem_of(model: str, instance: str, nodes: int, batch: int = 256) -> Problem:
    training = TrainingSpec(4096, batch, load_precision("mixed_precision"))
    return Problem(load_model(model), training, load_cluster(instance, nodes), "torch")


@pytest.mark.parametrize(
    "problem",
    [
        problem_of("llama3-8b", "trn1.32xlarge", 1),
        problem_of("mistral-7b", "h100-80gb", 2),
        problem_of("mixtral-8x7b", "h100-80gb", 2, 64),
    ],
    ids=lambda problem: problem.model.name,
)
def test_the_best_layout_alone_is_the_first_of_several(problem: Problem) -> None:
    alone, several = (search(*problem[:3], Pins(), problem.backend, top=top) for top in (0, 5))
    assert alone.best == several.best
    assert alone.optimality == several.optimality
    assert several.runners_up and not alone.runners_up
    others = [one.priced.others for one in (alone, several) if one.priced]
    priced = [sum(len(chunk.step_time_s) for chunk in one.chunks) if one else 0 for one in others]
    assert priced[0] < priced[1] or priced == [0, 0]


def test_of_equal_bounds_the_simplest_layout_is_solved_first() -> None:
    """dp=32 with microbatches of one sequence, and dp=16 cp=2 with two, take as long: the first is taken."""
    training = TrainingSpec(2048, 1024, load_precision("mixed_precision"))
    problem = load_model("llama3-70b"), training, load_cluster("trn1.32xlarge", 96)
    found = search(*problem, Pins(tp=8), "torch", top=0)
    assert (found.best.strategy.dp, found.best.strategy.cp) == (32, 1)
    assert "longer" not in found.optimality


def test_what_is_given_away_is_told_beside_what_is_not_known() -> None:
    problem = problem_of("llama3-8b", "trn1.32xlarge", 1)
    one = search(*problem[:3], Pins(tp=8), "nxd", top=0).best.strategy
    ranked = [Timed(10.0, one), Timed(10.2, replace(one, microbatch_size=2))]

    def said(place: int, gap: float) -> str:
        return optimality(problem._replace(backend="nxd"), Pins(), ranked, place, gap, Clock(inf))

    assert said(0, 0.0).startswith(OPTIMAL)
    assert said(0, 0.01) == f"within 1 % of the optimum within this model, proven{said(0, 0.0).removeprefix(OPTIMAL)}"
    assert said(1, 0.01).startswith("within 3 % of the optimum within this model, proven")
    assert said(0, 1.3).startswith("within 130 % of the optimum within this model, proven")
    assert said(0, 0.999).startswith("within 100 % of the optimum within this model, proven")
    assert said(1, 0.01).endswith("; it takes 2 % longer than the fastest that was found, which a note explains")


def test_what_is_further_behind_than_is_wanted_is_left_out() -> None:
    one: Strategy = search(*problem_of("llama3-8b", "trn1.32xlarge", 1)[:3], Pins(tp=8), "nxd", top=0).best.strategy
    ranked = [Timed(seconds, replace(one, microbatch_size=size)) for size, seconds in ((1, 1.0), (2, 1.01), (4, 1.02))]
    assert best_of_each_kind(ranked, 6) == ranked
    assert best_of_each_kind(ranked, 6, behind=1.01) == ranked[:2]
    assert best_of_each_kind(ranked, 1, behind=1.01) == ranked[:1]


def test_drafts_that_are_known_to_be_slower_are_not_refined() -> None:
    problem = problem_of("llama3-8b", "trn1.32xlarge", 1)
    wholes = price_layouts(problem, Pins(tp=8), Tally(), Clock(inf), exhaustive=True).wholes
    drafts = [draft for whole in wholes for draft in whole.drafts.drafts]
    sizes = {draft.microbatch_size for draft in drafts}
    assert len(sizes) > 1
    left = [*promising(wholes, 2.0, lambda draft: 1.0 if draft.microbatch_size == 1 else 2.0)]
    found = [draft for whole in left for draft in whole.drafts.drafts]
    assert found == [draft for draft in drafts if draft.microbatch_size == 1]
    assert all(len(whole.count) == len(whole.drafts.drafts) for whole in left)


def test_few_layouts_are_looked_at_before_it_is_known_how_fast_they_are_and_then_all_that_may_be_faster() -> None:
    """1,000 layouts with bounds of 0, 1, 2, ... seconds: as long as nothing is known some are priced, and then twice as
    many; who then wants those below 600 s has the rest of these."""
    ways = [
        Bounded(float(place), float(place), 0.0, MeshDrafts(0.0, Draft(1, 1, place + 1, 1, 1), [("1f1b", 1, 1)]))
        for place in range(1000)
    ]
    priced: list[int] = []

    def price(layouts: list[MeshDrafts]) -> list[object]:
        priced.append(len(layouts))
        return []

    def bounds(some: Sequence[Bounded], below_s: float) -> tuple[Sequence[Bounded], Sequence[TooLarge]]:
        return some, ()

    waiting = Waiting(ways, bounds, price, lambda: True)  # type: ignore[arg-type]
    assert len(waiting.left_below(inf)) == 1000 and not priced
    waiting.price_more(inf)
    assert (priced, waiting.left_at_least_s) == ([FIRST], float(FIRST))
    waiting.price_more(inf)
    assert (priced[1], waiting.left_at_least_s) == (MORE * FIRST, FIRST + MORE * FIRST)
    waiting.price_more(600.0)
    assert (sum(priced), waiting.left_at_least_s) == (601, 601.0)
    waiting.price_more(601.5)
    assert priced[3] >= LEAST and waiting.left_at_least_s == 601 + priced[3]  # a few are never priced alone


def test_a_few_ways_are_never_bounded_alone() -> None:
    """1,000 ways that take 0, 1, 2, ... seconds: who wants those below half a second has the next ones bounded too, and
    then need not ask until these are over; each time at least twice as many as before."""
    schedules = [("1f1b", 1, 1)]
    ways = [
        Bounded(float(place), float(place), 0.0, MeshDrafts(0.0, Draft(1, 1, place + 1, 1, 1), schedules))
        for place in range(1000)
    ]
    bounded: list[int] = []

    def bounds(some: Sequence[Bounded], below_s: float) -> tuple[Sequence[Bounded], Sequence[TooLarge]]:
        bounded.append(len(some))
        return some, ()

    waiting = Waiting(ways, bounds, lambda layouts: [], lambda: True)
    waiting.price_more(0.5)
    assert bounded == [FIRST]
    assert waiting.left_at_least_s == FIRST
    waiting.price_more(FIRST + 300.0)
    assert bounded == [FIRST, 301]
    waiting.price_more(FIRST + 301.0)
    assert bounded == [FIRST, 301, MORE * MORE * FIRST]


def test_where_the_best_is_asked_for_alone_nothing_slower_is_bounded_or_priced() -> None:
    """1,000 ways that take 0, 1, 2, ... seconds: a few are looked at until something is known, then those that may be
    faster and no other one; who asks for more than the best gets as many as ever."""
    schedules = [("1f1b", 1, 1)]
    ways = [
        Bounded(float(place), float(place), 0.0, MeshDrafts(0.0, Draft(1, 1, place + 1, 1, 1), schedules))
        for place in range(1000)
    ]
    bounded, priced = list[int](), list[int]()

    def bounds(some: Sequence[Bounded], below_s: float) -> tuple[Sequence[Bounded], Sequence[TooLarge]]:
        bounded.append(len(some))
        return some, ()

    def price(layouts: list[MeshDrafts]) -> list[Priced]:
        priced.append(len(layouts))
        return []

    waiting = Waiting(ways, bounds, price, lambda: True, FEW_FIRST, sparing=True)
    waiting.price_more(inf, alone=True)
    waiting.price_more(FEW_FIRST + 4.0, alone=True)
    assert bounded == priced == [FEW_FIRST, 5]
    waiting.price_more(FEW_FIRST + 5.0)
    assert (bounded[2], priced[2]) == (FIRST, FIRST)


def test_layouts_that_are_known_to_be_slower_wait_on_when_others_of_their_way_are_bounded() -> None:
    """Two ways with layouts that take 1, 2 and 9 seconds in their own order of axes, half as long in others."""
    schedules = [("1f1b", 1, size) for size in (1, 2, 4)]
    each = Each(np.array([1.0, 2.0, 9.0]), np.array([0.5, 1.0, 4.5]))
    ways = [
        Bounded(1.0, 0.5, 0.0, MeshDrafts(0.0, Draft(tp, 1, 8 // tp, 1, 1), schedules), each=lambda: each)
        for tp in (1, 2)
    ]
    bounded = list[int]()

    def bounds(some: Sequence[Bounded], below_s: float) -> tuple[Sequence[Bounded], Sequence[TooLarge]]:
        bounded.extend(size for one in some for _, _, size in one.layouts.schedules)
        return some, ()

    waiting = Waiting(ways, bounds, lambda layouts: [], lambda: True, FEW_FIRST, sparing=True)
    waiting.price_more(3.0, alone=True)
    assert bounded == [1, 2, 1, 2] and waiting.left_at_least_s == 9.0
    assert waiting.rest(lambda draft: 1)[::2] == (2, 9.0)
    assert [one.schedules for one in waiting.left_below(5.0)] == [[("1f1b", 1, 4)]] * 2
    assert not waiting.left_below(4.0)
    waiting.price_more(inf, alone=True)
    assert bounded == [1, 2, 1, 2, 4, 4] and waiting.left_at_least_s is None


def test_the_ways_to_use_meshes_are_found_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def legal(batch: int) -> tuple[list[MeshDrafts], Tally]:
        tally = Tally()
        return legal_layouts(problem_of("mixtral-8x7b", "trn1.32xlarge", 3, batch), Pins(), tally), tally

    def found_anew(batch: int) -> tuple[list[MeshDrafts], Tally]:
        layouts._used_meshes.cache_clear()
        return legal(batch)

    anew = {batch: found_anew(batch) for batch in (1, 36, 96)}
    assert len({len(found) for found, _ in anew.values()}) == len(anew)
    monkeypatch.setattr(layouts, "meshes", lambda problem, pins: pytest.fail("they were known"))
    assert {batch: legal(batch) for batch in anew} == anew


def test_a_search_for_the_best_alone_prices_few_layouts_and_finds_the_same() -> None:
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-70b"), training, load_cluster("trn1.32xlarge", 16), "torch")
    alone, several = (search(*problem[:3], Pins(), problem.backend, top=top) for top in (0, 5))
    assert (alone.best, alone.optimality) == (several.best, several.optimality)
    assert 3 * alone.fitting < several.fitting


def test_what_nobody_asks_for_is_neither_bounded_nor_priced_and_waits_on() -> None:
    """Two ways with microbatches of 1 and of 2 sequences, of which only those of 2 are asked for."""
    ways = [MeshDrafts(0.0, Draft(tp, 1, 8 // tp, 1, 1), [("1f1b", 1, 1), ("1f1b", 1, 2)]) for tp in (1, 2)]
    bounded: list[int] = []
    priced: list[int] = []

    def layouts(several: Sequence[Bounded], below_s: float) -> tuple[list[Bounded], list[TooLarge]]:
        ways = [one.layouts for one in several]
        bounded.extend(size for one in ways for _, _, size in one.schedules)
        return [Bounded(2.0, 1.0, 0.0, one._replace(schedules=[each])) for one in ways for each in one.schedules], []

    def price(several: list[MeshDrafts]) -> list[Priced]:
        priced.extend(size for one in several for _, _, size in one.schedules)
        return []

    def parted(one: MeshDrafts) -> Parted:
        return [each for each in one.schedules if each[2] == 2], [each for each in one.schedules if each[2] != 2]

    waiting = Waiting([Bounded(1.0, 1.0, 0.0, way) for way in ways], layouts, price, lambda: True)
    with waiting.only(parted):
        waiting.price_more(inf)
        assert bounded == priced == [2, 2] and waiting.next_s() is None
    assert waiting.next_s() == 1.0
    waiting.price_more(inf)
    assert bounded == priced == [2, 2, 1, 1] and waiting.next_s() is None


def test_no_layout_comes_before_a_faster_one_whose_way_is_bounded_late() -> None:
    """The fastest layouts wait behind ways of which none fits, more than are bounded together."""
    problem = problem_of("llama3.2-1b", "h100-80gb", 1, 64)
    every = price_layouts(problem, Pins(), Tally(), Clock(inf), exhaustive=True).chunks
    fastest = min(every, key=lambda one: float(one.step_time_s.min()))
    slower = [one for one in every if one.step_time_s.min() > fastest.step_time_s.min()]
    assert slower
    way = MeshDrafts(0.0, fastest.whole.drafts.drafts[0], [("1f1b", 1, 1)])
    ways = [Bounded(0.0, 0.0, 0.0, way._replace(state_bytes=float(place))) for place in range(FIRST + 1)]

    def bounds(some: Sequence[Bounded], below_s: float) -> tuple[Sequence[Bounded], Sequence[TooLarge]]:
        last = [one for one in some if one.layouts.state_bytes == FIRST]
        return last, [TooLarge([inf], one.layouts) for one in some if one not in last]

    def price(layouts: list[MeshDrafts]) -> list[Priced]:
        return [fastest] if layouts else []

    waiting = Waiting(ways, bounds, price, lambda: True)
    first = next(PricedLayouts(problem, slower, waiting).fastest_first(inf))
    assert first.step_time_s == fastest.step_time_s.min()


@pytest.mark.parametrize(
    ("pins", "left"),
    [
        (Pins(), "pipelines have up to 2 chunks a rank, or a number that divides its blocks"),
        (Pins(schedule="interleaved"), "pipelines have up to 2 chunks a rank, or a number that divides its blocks"),
        (Pins(num_virtual_stages=3), ""),
        (Pins(schedule="zero_bubble"), ""),
        (Pins(pp=1), ""),
    ],
)
def test_chunks_that_pins_decide_are_not_left_out(pins: Pins, left: str) -> None:
    problem = problem_of("gemma3-27b", "trn2.48xlarge", 1)
    found = [Timed(10.0, search(*problem[:3], Pins(tp=4, pp=1, recompute="full"), "torch", top=0).best.strategy)]
    words = optimality(problem, pins, found, 0, 0.0, Clock(inf))
    assert words == OPTIMAL + (f" ({left})" if left else "")
