"""What a process has answered it does not search again: searches are counted, not timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import autoshard
from autoshard.errors import NoLayoutFits
from autoshard.interface.questions import ANSWERED
from autoshard.planner import priced, smallest_cluster
from autoshard.planner.kept import Kept
from autoshard.planner.search import SEARCHED
from autoshard.planner.watching import watched_by


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The pins of every search that begins in the test."""
    begun: list[object] = []
    price_layouts = priced.price_layouts

    def counted(problem: Any, pins: Any, *rest: Any, **named: Any) -> Any:
        begun.append(pins)
        return price_layouts(problem, pins, *rest, **named)

    monkeypatch.setattr("autoshard.planner.search.price_layouts", counted)
    monkeypatch.setattr("autoshard.planner.cached_search.price_layouts", counted)
    for kept in (SEARCHED, ANSWERED):
        kept.forget()  # what other tests asked
    yield begun
    for kept in (SEARCHED, ANSWERED):
        kept.forget()


def test_a_plan_that_is_asked_for_again_is_not_searched_again(searches: list[object]) -> None:
    first = autoshard.plan("llama3-8b", nodes=2, tp=8)
    assert len(searches) == 1
    again = autoshard.plan("llama3-8b", nodes=2, tp=8)
    assert (len(searches), again) == (1, first)
    assert autoshard.plan("llama3-8b", nodes=2, tp=8, global_batch=512).training.global_batch_size == 512
    assert autoshard.plan("llama3-8b", nodes=2, tp=32).strategy.tp == 32
    assert len(searches) == 3


def test_a_search_that_is_asked_for_again_has_its_prices_too(searches: list[object]) -> None:
    first, again = (autoshard.search("llama3-8b", nodes=2, tp=8) for _ in range(2))
    assert len(searches) == 1
    assert (first.table()["step_time_s"] == again.table()["step_time_s"]).all()


def test_why_not_is_searched_once(searches: list[object]) -> None:
    plan = autoshard.plan("llama3-8b", nodes=2)
    begun = len(searches)
    first, again = (autoshard.why_not(plan, "tp=2").answer for _ in range(2))
    assert first == again
    assert len(searches) == begun + 1


def test_what_a_larger_cluster_would_do_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout that is nearest to fitting is looked for with more and more memory; no try without one says why."""
    plan, asked = autoshard.plan("llama3-70b", nodes=16, backend="nxd"), list[object]()
    shortage = smallest_cluster.shortage

    def counted(*question: Any) -> str:
        asked.append(question)
        return shortage(*question)

    monkeypatch.setattr("autoshard.planner.smallest_cluster.shortage", counted)
    found = autoshard.why_not(plan, "tp=2 pp=2").answer
    assert len(asked) == 1
    assert "no layout fits" in found.refusal
    assert found.best is not None and not found.best.estimate.fits


def test_a_plan_that_is_explained_again_is_not_searched_again(searches: list[object]) -> None:
    plan = autoshard.plan("llama3-8b", nodes=1, tp=8, cp=1)
    first = autoshard.explain(plan)
    begun = len(searches)
    assert begun > 5
    assert autoshard.explain(plan).page() == first.page()
    assert len(searches) == begun


def test_answers_for_which_there_was_no_time_are_not_kept(searches: list[object]) -> None:
    plan = autoshard.plan("llama3-8b", nodes=1, tp=8, cp=1)
    autoshard.explain(plan, time_limit=1e-9)
    begun = len(searches)
    autoshard.explain(plan)
    assert len(searches) > begun


def test_a_plan_under_a_time_limit_is_searched_each_time(searches: list[object]) -> None:
    for _ in range(2):
        autoshard.plan("llama3-8b", nodes=1, tp=8, time_limit=1000.0)
    assert len(searches) == 2


def test_what_somebody_ended_early_is_not_kept(searches: list[object]) -> None:
    with watched_by(lambda: False):
        autoshard.plan("llama3-8b", nodes=1, tp=8)
    autoshard.plan("llama3-8b", nodes=1, tp=8)
    assert len(searches) == 2


def test_an_error_is_found_each_time(searches: list[object]) -> None:
    for _ in range(2):
        with pytest.raises(NoLayoutFits, match="llama3-70b"):
            autoshard.plan("llama3-70b", nodes=1, tp=1, pp=1)


def test_of_more_questions_than_are_kept_the_one_asked_longest_ago_goes() -> None:
    kept: Kept[str] = Kept(2)
    kept.keep("a", "1")
    kept.keep("b", "2")
    assert kept.known("a") == "1"
    kept.keep("c", "3")
    assert [kept.known(one) for one in "abc"] == ["1", None, "3"]
