"""Searchers other than the exact one, over a space small enough to price in full."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

import autoshard
from autoshard import AutoshardError, NoLayoutFits
from autoshard.backends.rules import Problem, check_strategy
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import fits_probability
from autoshard.errors import NoneFound
from autoshard.models import load_model
from autoshard.planner.other_search import NOT_PRICED, searched
from autoshard.planner.searchers import SEARCHERS
from autoshard.planner.space import CHOICES, MOST_ASKED, BudgetSpent, Space
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

PROBLEM = Problem(
    load_model("llama3-8b"),
    TrainingSpec(2048, 64, load_precision("mixed_precision")),
    load_cluster("trn1.32xlarge", 1),
    "nxd",
)
NAMES = [name for name in SEARCHERS if name != "optuna"]


@pytest.fixture(scope="module")
def shared() -> Space:
    return Space(PROBLEM, Pins(), 0.9)


@pytest.fixture
def space(shared: Space) -> Space:
    shared.start()
    return shared


def test_prices_are_those_of_the_cost_model(space: Space) -> None:
    for layout in random.Random(0).sample(range(len(space)), 60):
        strategy, price = space.strategy(layout), space.price(layout)
        check_strategy(*PROBLEM, strategy)
        expected = estimate(*PROBLEM[:3], strategy)
        assert price.step_time_s == pytest.approx(expected.step_time_s, rel=1e-9)
        assert price.memory_bytes == pytest.approx(expected.fullest.total_bytes, rel=1e-9)
        assert price.fits == (price.memory_bytes <= space.level.memory_bytes)
    assert space.evaluations == 60


def test_the_fastest_is_the_fastest_of_all(space: Space) -> None:
    prices = [space.price_of(layout) for layout in range(len(space))]
    best = space.fastest()
    assert best is not None and prices[best].fits
    assert prices[best].step_time_s == min(price.step_time_s for price in prices if price.fits)
    assert prices[best].cost == min(price.cost for price in prices)
    worst_that_fits = max(price.cost for price in prices if price.fits)
    assert all(price.cost > worst_that_fits for price in prices if not price.fits)


def test_alternatives_differ_in_one_choice(space: Space) -> None:
    for layout in random.Random(1).sample(range(len(space)), 40):
        own = space._choices[layout]
        for name, others in space.alternatives(layout).items():
            for other in others:
                differs = {CHOICES[which] for which in np.flatnonzero(space._choices[other] != own)}
                assert differs == {name} if name != "mesh" else "mesh" in differs
            if name != "mesh":
                assert all(layout in space.alternatives(other)[name] for other in others[:2])
    one, other = space.random(random.Random(2)), space.random(random.Random(3))
    child, parent = space.strategy(space.crossed(one, other)), space.strategy(one)
    assert [getattr(child, name) for name in ("tp", "pp", "dp", "cp")] == [
        getattr(parent, name) for name in ("tp", "pp", "dp", "cp")
    ]


def test_the_moves_of_a_mesh_are_prime_factors(space: Space) -> None:
    place = space.meshes.index((8, 1, 4, 1, 1))
    moves = {space.meshes[other] for other in space._next_meshes(place)}
    # a factor of two from tp or dp to another degree; tp is 1, 2, 8 or 32 on this device
    possible = {(8, 2, 2, 1, 1), (8, 1, 2, 2, 1), (16, 1, 2, 1, 1), (4, 2, 4, 1, 1), (4, 1, 8, 1, 1), (4, 1, 4, 2, 1)}
    assert moves == possible & set(space.meshes) and moves


@pytest.mark.parametrize("name", NAMES)
def test_a_searcher_keeps_its_budget_and_comes_near(space: Space, name: str) -> None:
    optimum = space.price_of(space.fastest() or 0).step_time_s
    space.start(evaluations=600)
    taken = searched(space, name)
    assert taken is not None and taken == space.best
    assert 300 <= space.evaluations <= 600
    assert 1 - 1e-12 <= space.prices[taken].step_time_s / optimum < 1.5
    costs = [space.prices[layout].cost for _, _, layout in space.improvements]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) == len(costs)
    first = dict(space.prices)
    space.start(evaluations=600)
    searched(space, name)
    assert space.prices == first  # the same seed, the same search


def test_a_budget_ends_a_searcher(space: Space) -> None:
    space.start(evaluations=2)
    space.price(5)
    space.price(5)
    space.price(6)
    with pytest.raises(BudgetSpent):
        space.price(7)
    space.start(cpu_s=0.0)
    with pytest.raises(BudgetSpent):
        space.price(7)
    space.start(evaluations=1)
    space.price(5)
    for _ in range(MOST_ASKED - 2):
        space.price(5)
    with pytest.raises(BudgetSpent):  # one that asks for what it knows for ever ends too
        space.price(5)
    space.start(inf)
    assert space.most_evaluations == len(space)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"evaluations": 5}, "evaluations=5 limits a search other than exact; give search, too"),
        (
            {"search": "random", "exhaustive": True},
            "exhaustive with search=random: it is of search=exact by autoshard's cost model alone",
        ),
    ],
)
def test_options_of_another_search(options: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        autoshard.plan("llama3-8b", seq_len=2048, global_batch=64, **options)
    assert str(error.value) == text


def test_every_layout_is_counted_once() -> None:
    result = autoshard.search("llama3-8b", seq_len=2048, global_batch=64, search="random", evaluations=50)
    left = {one.reason: one.count for one in result.rejections}
    assert result.considered == result.fitting + sum(left.values())
    total = 50 + left[NOT_PRICED]
    assert f"with 50 of {total:,} layouts priced" in result.optimality
    assert result.optimality.endswith("nothing is proven")


def test_a_table_has_what_was_priced_and_by_whose_prices() -> None:
    result = autoshard.search("llama3-8b", seq_len=2048, global_batch=64, search="random", evaluations=50)
    columns = result.table()
    assert len(columns["tp"]) == 50 and not columns["step_time_is_bound"].any()
    assert columns["fits"].sum() == result.fitting
    best = result.fastest(1)
    assert best["step_time_s"][0] == pytest.approx(result.plan.step_time_s, rel=1e-5)
    assert best["memory_bytes"][0] == pytest.approx(result.plan.memory_bytes, rel=1e-5)


def test_the_fastest_fit_as_surely_as_the_plan() -> None:
    result = autoshard.search("llama3.2-1b", seq_len=2048, global_batch=64)
    columns, fastest = result.table(), result.fastest(10**6)
    assert columns["fits"].sum() == result.fitting > len(fastest["tp"])
    sure = result.plan.cluster, result.plan.cluster.device.memory_bytes
    chances = [fits_probability(needed, sure[1], sure[0]) for needed in fastest["memory_bytes"].tolist()]
    assert chances == fastest["fits_probability"].tolist()
    assert min(chances) >= 0.9 > fits_probability(columns["memory_bytes"][columns["fits"]].max(), sure[1], sure[0])
    assert fastest["step_time_s"][0] == pytest.approx(result.plan.step_time_s, rel=1e-5)
    assert len(result.fastest(3)["tp"]) == 3 and len(result.fastest(0)["tp"]) == 0
    for count in (-1, 1.5, "three", None):
        with pytest.raises(AutoshardError, match=r"^count: .* must be a whole number of at least 0$"):
            result.fastest(count)  # type: ignore[arg-type]


def test_what_does_not_go_with_another_search_is_refused() -> None:
    with pytest.raises(AutoshardError, match=r"^operators=solver with search=random: the solver goes with the exact"):
        autoshard.plan("llama3-8b", search="random", operators="solver")
    with pytest.raises(AutoshardError, match=r"^no layout of llama3-8b .* is legal: "):
        autoshard.plan("llama3-8b", search="random", tp=4)
    with pytest.raises(NoLayoutFits, match=r"^no layout fits llama3.1-405b on 1 x trn1.32xlarge: "):
        autoshard.plan("llama3.1-405b", search="random")


def test_a_searcher_that_finds_nothing_is_no_proof_that_nothing_fits() -> None:
    asked: dict[str, Any] = {"seq_len": 2048, "global_batch": 64, "search": "random"}
    told = (
        r"^search=random found no layout of llama3\.2-1b on 1 x trn1\.32xlarge that fits among 1 of 440; use more "
        r"evaluations, or search=exact$"
    )
    with pytest.raises(NoneFound, match=told):  # torch would have had one
        autoshard.plan("llama3.2-1b", **asked, evaluations=1)
    assert autoshard.plan("llama3.2-1b", **asked, evaluations=10).backend == "nxd"
    by_both = r"^no layout .* is legal: .*; with backend torch search=random found no layout .* among 1 of "
    with pytest.raises(NoneFound, match=by_both):
        autoshard.plan("llama3.2-1b", **{**asked, "seq_len": 8192}, evaluations=1, pp=2, zero=0)


def test_a_missing_optuna_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(AutoshardError, match=r"^search=optuna needs optuna: pip install 'autoshard\[optuna\]'$"):
        autoshard.plan("llama3-8b", seq_len=2048, global_batch=64, search="optuna")


def test_pins_hold_for_every_searcher() -> None:
    plan = autoshard.plan("llama3-8b", seq_len=2048, global_batch=64, search="annealing", evaluations=100, tp=8, zero=1)
    assert (plan.strategy.tp, plan.strategy.zero) == (8, 1)
    assert replace(plan.pins, beaten_path=False).fixed == {"tp": 8, "zero": 1}
