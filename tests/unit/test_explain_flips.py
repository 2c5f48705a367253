"""Where a choice flips: against layouts whose step times are formulas, and as laws on a real search."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from math import inf
from typing import Any

import pytest

import autoshard
from autoshard.audits.pool import Pool
from autoshard.backends.rules import Draft, Problem
from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.cost.values import Estimate
from autoshard.errors import NoLayoutFits
from autoshard.explanation import answers, flips
from autoshard.explanation.answers import FlipRow, Sensitivity, problem_of
from autoshard.explanation.describe import describe
from autoshard.explanation.flips import FINE, Question, flip, same_layout, winner
from autoshard.explanation.quantities import CLOSE, Quantity, quantities
from autoshard.explanation.sensitivity import (
    AHEAD,
    HelperGone,
    _choice,
    answer_alone,
    answers_so_far,
    sensitivity,
)
from autoshard.explanation.sensitivity import Question as Asked
from autoshard.explanation.sensitivity_text import flips_by_quantity, unanswered_line
from autoshard.explanation.text import pieces, render
from autoshard.interface.questions import answers_of
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.cached_search import Searches, known_bytes, known_step_time_s
from autoshard.planner.kept import Kept
from autoshard.planner.priced import Clock
from autoshard.planner.search import search
from autoshard.plans.plan import Plan, SearchSummary, make_plan
from autoshard.plans.search_result import Candidate, Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some
from tests.unit.explain_examples import answers_by_hand, recipe_plan
from tests.unit.plan_examples import plan_70b, strategy

Law = Callable[[float], float]
INFINITE = float("inf")
Z_RING = "Z ring of the UltraServer"
A, B, C = strategy(), strategy(tp=8, dp=8), strategy(tp=2, dp=32)


@pytest.fixture
def problem() -> Problem:
    plan = plan_70b()
    return Problem(plan.model, plan.training, plan.cluster, plan.backend)


def memory(problem: Problem) -> Quantity:
    """A continuous one; its factor can be read off the scaled problem."""
    return next(one for one in quantities(problem) if one.name.startswith("memory"))


def with_laws(monkeypatch: pytest.MonkeyPatch, problem: Problem, laws: dict[Strategy, Law]) -> list[float]:
    """Search and estimate answer from laws of the memory's factor; INFINITE is what does not fit. -> factors asked."""
    asked: list[float] = []
    now = problem.cluster.device.memory_bytes

    def priced(scaled: Any, one: Strategy) -> Estimate:
        estimate = plan_70b().estimate
        step = laws[one](scaled.device.memory_bytes / now)
        capacity = 0.0 if step == INFINITE else estimate.memory_capacity_bytes
        return replace(estimate, step_time_s=step, memory_capacity_bytes=capacity)

    def best(self: Searches, scaled: Problem, *_: Any) -> Candidate:
        asked.append(scaled.cluster.device.memory_bytes / now)
        found = [Candidate(one, priced(scaled.cluster, one)) for one in laws]
        fitting = [one for one in found if one.estimate.fits]
        if not fitting:
            raise NoLayoutFits("nothing fits")
        return min(fitting, key=lambda one: one.estimate.step_time_s)

    monkeypatch.setattr(Searches, "best", best)
    monkeypatch.setattr(flips, "known_step_time_s", lambda problem, one: priced(problem.cluster, one).step_time_s)
    monkeypatch.setattr(flips, "known_bytes", lambda problem, one: 1.0 if priced(problem.cluster, one).fits else inf)
    monkeypatch.setattr(flips, "taken_of", lambda problem, passed, level, ranked: ranked[0].strategy)
    return asked


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_memory_changes_no_time_and_speed_no_bytes(problem: Problem, backend: str) -> None:
    """So each is computed once for many values of the other; together they are what `estimate` has."""
    problem = problem._replace(backend=backend)
    chosen = [A, B, strategy(pp=1, dp=64, stage_layers=(80,), zero=3)] if backend == "torch" else [A, B]
    for quantity in quantities(problem):
        scaled = quantity.scaled(problem, 0.5)
        for one in chosen:
            whole = estimate(scaled.model, scaled.training, scaled.cluster, one)
            assert known_step_time_s(scaled, one) == whole.step_time_s
            assert known_bytes(scaled, one) == whole.fullest.total_bytes


def test_two_straight_lines(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    """A takes 10 s whatever the factor, B 20 s / factor: equal at 2."""
    asked = with_laws(monkeypatch, problem, {A: lambda f: 10.0, B: lambda f: 20.0 / f})
    found = flip(Searches(), Question(problem, Pins()), A, memory(problem), 4.0)
    assert found is not None and found.to is not None
    assert found.to.strategy == B
    assert found.factor == pytest.approx(2.0, rel=FINE - 1)
    assert found.holds <= 2.0 <= found.factor
    assert len(asked) == 3  # the far end, and on both sides of the flip


def test_no_flip(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    asked = with_laws(monkeypatch, problem, {A: lambda f: 10.0, B: lambda f: 50.0 / f})
    assert flip(Searches(), Question(problem, Pins()), A, memory(problem), 4.0) is None
    assert asked == [4.0]


def test_a_layout_that_wins_only_in_between(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    """At the far end C wins, but B did before it: B from 1.5, C from 3."""
    laws: dict[Strategy, Law] = {
        A: lambda f: 10.0,
        B: lambda f: 9.0 if f >= 1.5 else INFINITE,
        C: lambda f: 8.0 if f >= 3.0 else INFINITE,
    }
    with_laws(monkeypatch, problem, laws)
    found = flip(Searches(), Question(problem, Pins()), A, memory(problem), 4.0)
    assert found is not None and found.to is not None
    assert found.to.strategy == B
    assert found.factor == pytest.approx(1.5, rel=FINE - 1)


def test_a_flip_is_found_to_a_few_percent_where_every_bit_of_room_lets_another_layout_fit(
    monkeypatch: pytest.MonkeyPatch, problem: Problem
) -> None:
    """Each search finds a layout that the ones before did not know of."""
    others = [strategy(tp=8, dp=8, microbatch_size=size) for size in range(1, 40)]
    laws: dict[Strategy, Law] = {A: lambda f: 40.0}
    for place, one in enumerate(others):
        laws[one] = lambda f, place=place: 39.0 - place / 2 if f >= 1.05 + 0.05 * place else INFINITE  # type: ignore
    asked = with_laws(monkeypatch, problem, laws)
    found = flip(Searches(), Question(problem, Pins()), A, memory(problem), 4.0)
    assert found is not None and found.to is not None
    assert found.to.strategy == others[0]
    assert found.holds <= 1.05 <= found.factor <= found.holds * CLOSE
    assert len(asked) <= flips.SEARCHES + flips.MORE_SEARCHES


def test_where_nothing_fits_any_more(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    with_laws(monkeypatch, problem, {A: lambda f: 10.0 if f >= 0.8 else INFINITE})
    found = flip(Searches(), Question(problem, Pins()), A, memory(problem), 0.25)
    assert found is not None
    assert (found.to, found.refusal) == (None, "nothing fits")
    assert found.factor == pytest.approx(0.8, rel=FINE - 1)
    assert found.factor <= 0.8 <= found.holds


def test_another_cut_is_no_flip(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    """The choice itself with other stages wins from 1.2, another layout from 2."""
    cut = strategy(stage_layers=(9, *(10,) * 6, 11))
    laws: dict[Strategy, Law] = {A: lambda f: 10.0, cut: lambda f: 9.9 if f >= 1.2 else 10.1, B: lambda f: 19.8 / f}
    with_laws(monkeypatch, problem, laws)
    found = flip(Searches(), Question(problem, Pins()), A, memory(problem), 4.0)
    assert found is not None and found.to is not None
    assert found.to.strategy == B
    assert found.factor == pytest.approx(2.0, rel=FINE - 1)


def test_whole_numbers_double(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    batch = next(one for one in quantities(problem) if one.whole)

    def best(self: Searches, scaled: Problem, *_: Any) -> Candidate:
        return Candidate(A if scaled.training.global_batch_size < 4096 else B, plan_70b().estimate)

    monkeypatch.setattr(Searches, "best", best)
    found = flip(Searches(), Question(problem, Pins()), A, batch, 4.0)
    assert found is not None and found.to is not None
    assert (found.factor, found.holds, found.to.strategy) == (4.0, 2.0, B)
    assert flip(Searches(), Question(problem, Pins()), A, batch, 0.25) is None


def test_a_whole_number_is_halved_and_rounded(problem: Problem) -> None:
    """An odd one too; what rounds to the same value is looked at once, and 1 has no half."""

    def values(batch: int, furthest: float) -> list[float]:
        of = problem._replace(training=replace(problem.training, global_batch_size=batch))
        (quantity,) = (one for one in quantities(of) if one.name == "batch, sequences")
        found = [quantity.value(factor) for factor in quantity.steps(furthest)]
        scaled = (quantity.scaled(of, factor).training.global_batch_size for factor in quantity.steps(furthest))
        assert [*scaled] == found
        return found

    assert values(37, 4.0) == [74, 148]
    assert values(37, 0.25) == [18, 9]
    assert values(3, 0.25) == [2, 1]
    assert values(2, 0.25) == [1]
    assert values(1, 0.25) == []


def odd_plan(batch: int) -> Plan:
    """llama3.2-1b on one small node."""
    model, cluster = load_model("llama3.2-1b"), load_cluster("trn1.2xlarge", 1)
    training = TrainingSpec(512, batch, load_precision("mixed_precision"))
    best = search(model, training, cluster, top=0).best
    return make_plan(model, training, cluster, "nxd", best.strategy, best.estimate, SearchSummary(1, 1))


def test_an_odd_batch_is_looked_at_where_it_is_said_to_be() -> None:
    """A microbatch of 3 sequences is not legal with two."""
    plan = odd_plan(3)
    assert plan.strategy.microbatch_size == 3
    found = sensitivity(plan)
    assert found is not None and found.agrees
    up, down = flips_by_quantity(found)["batch, sequences: 3"]
    assert up == "at 6 and 12: no flip"
    assert down.startswith("at 2: mbs=2 ")
    assert "the layout above is not legal there: dp=1 x microbatch_size=3 must divide global_batch_size=2" in down
    best, _ = winner(Searches(), problem_of(odd_plan(2)), Pins())
    assert best is not None and best.strategy.microbatch_size == 2


def test_a_batch_of_one_is_not_halved() -> None:
    found = sensitivity(odd_plan(1))
    assert found is not None
    assert [row.at for row in found.flips if row.quantity == "batch, sequences"] == [("2", "4")]


@dataclass(frozen=True)
class Known:
    """A path that has all layouts but one, or a compiler that refuses this one."""

    but: Strategy

    def known(self, one: Strategy) -> bool:
        return one != self.but

    def unknown(self, one: Strategy) -> tuple[str, ...]:
        return () if self.known(one) else ("tp=32", "a pipeline inside a node")

    def refuses(self, one: Strategy) -> bool:
        return not self.known(one)


@pytest.mark.parametrize(
    ("passed", "reason"),
    [
        ((Known(A), None), "but known to run: of that one nobody is known to have run tp=32, a pipeline inside a node"),
        ((None, Known(A)), "but it is expected to compile, and that one is not"),
        ((Known(C), Known(C)), "less than the model can tell, but simpler"),
        ((None, None), "less than the model can tell, but simpler"),
    ],
)
def test_a_slower_layout_that_is_taken_is_said_to_be_slower(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, passed: tuple[Any, Any], reason: str
) -> None:
    monkeypatch.setattr(answers, "passed_over", lambda problem, pins: passed)
    ours = estimate(problem.model, problem.training, problem.cluster, A)
    slower = Candidate(B, replace(ours, step_time_s=1.145 * ours.step_time_s))
    assert answers._because(problem, Pins(), A, slower, 0.5) == f"there 14.5 % slower than the layout above, {reason}"
    less = tuple(replace(term, value=term.value * 0.5) for term in ours.time_terms)
    faster = Candidate(B, replace(ours, step_time_s=0.5 * ours.step_time_s, time_terms=less))
    assert answers._because(problem, Pins(), A, faster, 0.5).startswith("saves ")


def test_a_flip_that_is_known_only_roughly_is_no_threshold() -> None:
    """Also where nothing between today's value and the flip was searched."""
    found = answers_by_hand()
    row = found.flips[4]

    def said(**changes: Any) -> list[str]:
        (sentences,) = flips_by_quantity(replace(found, flips=(replace(row, **changes),))).values()
        return sentences

    change = "pp=4 dp=16 (saves 2.00 s pipeline bubble)"
    assert said() == [f"somewhere from 18.0 GB up to 20.0 GB: {change}"]
    assert said(holds=row.now, holds_text=row.now_text) == [f"somewhere from 17.0 GB up to 20.0 GB: {change}"]
    assert said(holds=1.95e10) == [f"from 20.0 GB up: {change}"]


def test_whole_numbers_that_were_looked_at_are_listed() -> None:
    """Between them nothing was looked at."""
    row = FlipRow("batch", True, 8, 32, None, 32, "8", "32", "", "32", "", "", "", ("16", "32"))
    less = FlipRow("batch", False, 8, 2, None, 2, "8", "2", "", "2", "", "", "", ("4", "2"))
    flipped = replace(row, value=32.0, holds=16.0, value_text="32", holds_text="16", change="tp=8", because="saves 1 s")
    none = replace(answers_by_hand(), flips=(row, less))
    assert flips_by_quantity(none) == {"batch: 8": ["no flip at 2, 4, 16 and 32"]}
    one = replace(none, flips=(replace(flipped, layout="tp=8"), less))
    expected = ["at 32 (at 16 the choice still holds): tp=8 (saves 1 s)", "at 4 and 2: no flip"]
    assert flips_by_quantity(one) == {"batch: 8": expected}


def test_quantities_scale_what_they_say(problem: Problem) -> None:
    scaled = {one.name: one.scaled(problem, 2.0) for one in quantities(problem)}
    now, device = problem.cluster, problem.cluster.device
    links = scaled["links in a node, each device"].cluster
    assert links.intra_node[-1][1].bandwidth_bytes_per_s == 2 * now.intra_node[-1][1].bandwidth_bytes_per_s
    assert links.inter_node == now.inter_node
    network = scaled["network, each adapter"].cluster
    assert network.inter_node.bandwidth_bytes_per_s == 2 * now.inter_node.bandwidth_bytes_per_s
    larger = scaled["memory, each device"].cluster.device
    assert larger.memory_bytes == 2 * device.memory_bytes
    assert larger.reserved_memory_bytes == device.reserved_memory_bytes
    assert scaled["peak, each device"].cluster.device.peak_flops_per_s("bfloat16") == 2 * 95e12
    assert f"{Z_RING}, each chip" not in scaled
    joined = problem._replace(cluster=load_cluster("trn2u.48xlarge", 16))
    link, ring = joined.cluster.intra_domain, {one.name: one for one in quantities(joined)}[f"{Z_RING}, each chip"]
    assert link is not None and ring.now == link.bandwidth_bytes_per_s
    doubled = replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s)
    assert ring.scaled(joined, 2.0).cluster == replace(joined.cluster, intra_domain=doubled)
    assert scaled["batch, sequences"].training.global_batch_size == 2048
    assert scaled["sequence length, tokens"].training.sequence_length == 16384


@cache
def small_plan() -> Plan:
    """llama3-8b on one trn1 node, searched with tp=8: a small space."""
    return searched_plan("llama3-8b", 1, 256, Pins(tp=8, cp=1), 0.9)


@cache
def small_answers() -> tuple[Sensitivity, ...]:
    """What this process says of it, one answer more each time."""
    return tuple(answers_so_far(small_plan(), Clock(inf)))


def searched_plan(
    name: str,
    nodes: int,
    batch: int,
    pins: Pins,
    fit_probability: float,
    backend: str = "nxd",
    instance: str = "trn1.32xlarge",
    sequence_length: int = 8192,
) -> Plan:
    model, cluster = load_model(name), load_cluster(instance, nodes)
    training = TrainingSpec(sequence_length, batch, load_precision("mixed_precision"))
    found = search(model, training, cluster, pins, backend, fit_probability=fit_probability)
    summary = SearchSummary(found.considered, found.fitting, found.optimality, fit_probability, found.rejections)
    best = found.best
    return make_plan(
        model, training, cluster, backend, best.strategy, best.estimate, summary, found.runners_up, (), pins
    )


def test_answers_hold_in_the_search() -> None:
    """The choice wins where it is said to hold, and does not at the flip."""
    plan = small_plan()
    found = small_answers()[-1]
    assert found == sensitivity(plan) and found.agrees
    problem = Problem(plan.model, plan.training, plan.cluster, plan.backend)
    by_name = {one.name: one for one in quantities(problem)}
    assert {row.quantity for row in found.flips} == set(by_name)
    flipped = [row for row in found.flips if row.value is not None and row.layout]
    assert flipped
    for row in flipped[:4]:
        quantity = by_name[row.quantity]
        assert row.value is not None
        there, _ = winner(OneByOne(), quantity.scaled(problem, row.value / quantity.now), plan.pins)
        before, _ = winner(OneByOne(), quantity.scaled(problem, row.holds / quantity.now), plan.pins)
        assert there is not None and not same_layout(there.strategy, plan.strategy)
        assert before is not None and same_layout(before.strategy, plan.strategy)
        assert row.because
    assert [one.nodes for one in found.sizes] == [1, 2]
    trn2 = {"trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"}
    assert {one.instance for one in found.prices} == {"trn1n.32xlarge", *trn2}  # NxD does not run on trn3


def test_a_plan_that_was_to_fit_less_surely_is_found_again() -> None:
    """The plan says what was asked."""
    usual, tight = (searched_plan("llama3-70b", 16, 1024, Pins(tp=8, pp=16, cp=1), sure) for sure in (0.9, 0.5))
    assert tight.estimate.fits_probability < 0.9 <= usual.estimate.fits_probability
    assert not same_layout(usual.strategy, tight.strategy)
    assert "--fit-probability" not in (describe(usual).optimality or "")
    assert (describe(tight).optimality or "").endswith("; of layouts that fit with at least 50 % (--fit-probability)")
    for plan in (usual, tight):
        found, _ = _choice(Searches(), plan)
        assert found is not None and same_layout(found.strategy, plan.strategy)


class OneByOne(Searches):
    """Each a search of its own."""

    def best(
        self,
        problem: Problem,
        pins: Pins,
        fit_probability: float = 0.9,
        among: frozenset[Draft] | None = None,
        sparing: bool = True,
    ) -> Candidate:
        model, training, cluster, backend = problem
        return search(model, training, cluster, pins, backend, top=0, fit_probability=fit_probability).best

    def fastest(self, problem: Problem, pins: Pins, fit_probability: float = 0.9) -> Candidate:
        model, training, cluster, backend = problem
        found = search(model, training, cluster, pins, backend, top=0, fit_probability=fit_probability).fastest
        assert found is not None
        return Candidate(found, estimate(model, training, cluster, found))


PINS = {
    "llama3-8b": (1, 256, Pins(tp=8, cp=1), 0.9, "nxd", "trn1.32xlarge"),
    "mistral-7b": (1, 64, Pins(tp=2, cp=1), 0.9, "torch", "h100-80gb"),
    "mixtral-8x7b": (
        4,
        64,
        Pins(tp=8, cp=1, ep=1, num_virtual_stages=1, microbatch_size=1),
        0.5,
        "nxd",
        "trn1.32xlarge",
    ),
}


@pytest.mark.parametrize("name", some(PINS, 1))
def test_answers_are_those_of_searches_one_by_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plan = searched_plan(name, *PINS[name])
    told: list[tuple[int, int]] = []
    quick = sensitivity(plan, lambda *counts: told.append(counts))
    monkeypatch.setattr("autoshard.explanation.sensitivity.Searches", OneByOne)
    assert quick is not None and quick.agrees
    assert quick == sensitivity(plan)
    assert told == [(done, len(told)) for done in range(len(told))]


def test_a_plan_that_was_not_searched_has_no_flips() -> None:
    assert sensitivity(replace(plan_70b(), search=None)) is None


class Aside:
    """A helper that answers when somebody waits for it. limit_s: seconds for an answer. answers: how many it gives."""

    def __init__(self, plan: Plan, limit_s: float = INFINITE, answers: float = INFINITE, is_fast: bool = False):
        self.plan, self.limit_s, self.left, self.is_fast = plan, limit_s, answers, is_fast
        self.given, self.open = list[Asked](), deque[Asked]()

    def give(self, question: Asked) -> None:
        self.given.append(question)
        self.open.append(question)

    def has_answered(self) -> bool:
        return self.is_fast

    def answer(self) -> tuple[Any, ...]:
        self.left -= 1
        if self.left < 0:
            raise HelperGone
        return answer_alone(self.plan, self.open.popleft(), self.limit_s)


@pytest.mark.parametrize("is_fast", some([True, False], 1))
def test_questions_that_a_helper_answers_have_the_same_answers(is_fast: bool) -> None:
    plan = small_plan()
    alone = small_answers()
    helper = Aside(plan, is_fast=is_fast)
    several = [*answers_so_far(plan, Clock(inf), elsewhere=lambda of: helper)]
    assert several[-1] == alone[-1]
    assert {*several} <= {*alone}, "each is of the first questions of the page"
    given = [one.subject for one in helper.given]
    assert given[:AHEAD] == ["other instances"] * AHEAD
    assert (len(given) > AHEAD) == is_fast


def test_a_helper_that_is_gone_is_done_without() -> None:
    plan = small_plan()
    for answered in (0, 1):
        *_, last = answers_so_far(plan, Clock(inf), elsewhere=partial(Aside, answers=answered))
        assert last == small_answers()[-1]


def test_what_a_helper_has_no_time_for_is_named() -> None:
    plan = small_plan()
    *_, last = answers_so_far(plan, Clock(inf), elsewhere=partial(Aside, limit_s=0.0))
    assert last.unanswered == ("other instances",)
    assert last == replace(small_answers()[-1], prices=last.prices, unanswered=last.unanswered)


@pytest.mark.parametrize("ends_early", some([False, True], 1))
def test_a_second_process_gives_the_same_answers_and_none_is_missed(
    ends_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, begun = small_plan(), Pool.begun
    monkeypatch.setattr("autoshard.interface.questions.ANSWERED", Kept(1))
    if ends_early:
        monkeypatch.setattr(Pool, "begun", lambda pool, *asked: begun(pool, os._exit, 1))
    assert [*answers_of(plan, processes=2)][-1] == small_answers()[-1]


def test_nobody_asks_why_nothing_is_legal_on_another_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object) -> None:
        raise AssertionError("no page has it")

    monkeypatch.setattr("autoshard.planner.obstacles.obstacles", told)
    plan = small_plan()
    assert plan.backend == "nxd"
    assert answers.price_row(Searches(), plan, "trn3-gen1", 0.9) is None


def test_price_breaks_even() -> None:
    """As many tokens for the money: their price over ours is their speed a node over ours."""
    plan = recipe_plan("llama3_8b_trn1_4nodes")
    row = answers.price_row(Searches(), plan, "trn1n.32xlarge", 0.9)
    assert row is not None and row.price_usd is not None and row.own_break_even_usd is not None
    theirs = plan.training.tokens_per_step / row.step_time_s / row.nodes
    ours = plan.estimate.tokens_per_s / plan.cluster.nodes
    assert row.break_even_usd == pytest.approx(21.5 * theirs / ours)
    assert row.own_break_even_usd == pytest.approx(row.price_usd * ours / theirs)
    assert answers.price_row(Searches(), plan, "h100-80gb", 0.9) is None


def test_devices_with_native_pytorch_are_priced_beside_a_plan_whose_devices_have_none() -> None:
    """The usual release of trn1 has no native PyTorch, nor would a later one bring it there."""
    plan = autoshard.plan("llama3-8b", "trn1.32xlarge", nodes=2, backend="torch", tp=8, pp=1, cp=1)
    assert (plan.cluster.sdk, plan.cluster.stack) == ("2.28", None)
    row = answers.price_row(Searches(), plan, "trn2.48xlarge", 0.9)
    assert row is not None and row.break_even_usd > 0


def test_usd_per_billion_tokens() -> None:
    # 16 nodes at 21.5 USD an hour, 1e6 tokens/s: 1000 s = 1/3.6 hours
    cluster = load_cluster("trn1.32xlarge", 16)
    assert cluster.usd_per_billion_tokens(1e6) == pytest.approx(16 * 21.5 / 3.6)
    assert replace(cluster, price_per_node_hour_usd=None).usd_per_billion_tokens(1e6) is None


class Looks(Clock):
    """Runs out after so many looks at it."""

    def __init__(self, looks: int):
        super().__init__(inf)
        self.left = looks

    def in_time(self) -> bool:
        self.left -= 1
        return self.left >= 0


def test_what_there_is_no_time_for_is_named() -> None:
    plan = small_plan()
    whole, looks = small_answers()[-1], Looks(10**9)
    assert whole.unanswered == ()
    *_, last = answers_so_far(plan, looks)
    assert last == whole
    half = [*answers_so_far(plan, Looks((10**9 - looks.left) // 2))]
    assert half[-1].unanswered[-2:] == ("more nodes", "other instances")
    assert half[-1].degrees == whole.degrees
    assert half[-1].flips and half[-1].flips == whole.flips[: len(half[-1].flips)]
    for before, after in pairwise(half):
        assert before.flips == after.flips[: len(before.flips)]
    assert "; more nodes; other instances; a longer --time-limit answers these too" in unanswered_line(half[-1])
    (nothing,) = answers_so_far(plan, Looks(0))
    assert (nothing.agrees, nothing.flips, nothing.sizes) == (None, (), ())
    assert nothing.unanswered == ("another tp", "what flips the choice", "more nodes", "other instances")
    assert "Flips" not in render(describe(plan, nothing))


def test_the_page_stands_before_the_first_answer_and_grows_by_whole_lines() -> None:
    plan = small_plan()
    told: list[Sensitivity] = []

    def told_one_by_one() -> Iterator[Sensitivity]:
        for one in answers_so_far(plan, Clock(inf)):
            told.append(one)
            yield one

    page = pieces(describe(plan), told_one_by_one(), 100, False)
    start = next(page)
    assert not told
    assert render(describe(plan), 100).startswith(start)
    parts = [*page]
    assert all(part == "" or part.endswith("\n") for part in parts)
    assert sum(map(bool, parts)) > len(quantities(problem_of(plan)))
    assert start + "".join(parts) == render(describe(plan, told[-1]), 100)


def test_explain_says_what_it_knows_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, limits = small_plan(), []

    def nothing_yet(of: Plan, clock: Clock, on_answer: object, elsewhere: object) -> Iterator[Sensitivity]:
        limits.append(clock.limit_s)
        assert capsys.readouterr().out.startswith("llama3-8b on 1 x trn1.32xlarge")
        yield from ()

    monkeypatch.setattr("autoshard.explanation.sensitivity.answers_so_far", nothing_yet)
    monkeypatch.setattr("autoshard.commands.explain.load_plan", lambda path: plan)
    for more, limit_s in (([], 60), (["--time-limit", "7"], 7)):
        assert main(["explain", "plan.json", *more]) == 0
        assert limits.pop() == limit_s
        assert "Notes" in capsys.readouterr().out or not plan.notes
