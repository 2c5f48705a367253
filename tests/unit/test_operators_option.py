"""`--operators solver`: a plan with the solver's choices is written, read, validated and rehearsed like any other."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import autoshard
from autoshard.backends.rules import Problem
from autoshard.errors import AutoshardError
from autoshard.explanation.answers import problem_of
from autoshard.planner.answer import Answer, _proven, _solved, _with_solver
from autoshard.planner.operators.combine import Combined
from autoshard.planner.planning import plan_for, plan_of
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.planner.search_words import PROVEN
from autoshard.plans.plan import Plan, operator_choices
from autoshard.plans.plan_json import plan_to_json, write_plan
from autoshard.plans.prices import other_operators
from autoshard.plans.search_result import Candidate, Pins, SearchResult
from autoshard.plans.validate import plan_from_dict
from autoshard.replanning import replan
from autoshard.runtime.rehearse import rehearse
from autoshard.units import format_seconds


@cache
def plan(operators: str, backend: str = "torch") -> Plan:
    """Where there is memory for whole key weights, Megatron's rule is not the best."""
    return plan_for(
        PlanRequest(
            "llama3-8b", nodes=4, backend=backend, operators=operators, pins={"tp": 8, "pp": 4, "recompute": "none"}
        )
    )


def test_it_is_faster_and_says_by_how_much() -> None:
    solved, megatron = plan("solver"), plan("megatron")
    assert solved.estimate.step_time_s < 0.99 * megatron.estimate.step_time_s
    assert solved.estimate.fits
    (note,) = (note for note in solved.notes if note.startswith("operators"))
    assert (
        note.startswith("operators by the solver: ") and " a step; the best layout with Megatron's would take " in note
    )
    assert note.endswith(" points of their Pareto sets in whole layouts")
    assert not any(note.startswith("operators") for note in megatron.notes)
    assert solved.operators != operator_choices(solved.model, solved.training, solved.cluster, solved.strategy)
    assert megatron.operators == operator_choices(
        megatron.model, megatron.training, megatron.cluster, megatron.strategy
    )


def test_what_is_proven_is_said() -> None:
    solved, megatron = plan("solver").search, plan("megatron").search
    assert solved is not None and megatron is not None
    words, _, share = solved.optimality.partition("is more than ")
    assert words == "operators by the solver: no layout, however its operators are sharded, "
    assert share.endswith(" % faster, proven") and 0 < float(share.split()[0]) < 50
    assert megatron.optimality.startswith("optimal within this model: ")


def answer_of(megatron: Plan, gap: float = 0.0) -> Answer:
    """The answer of a search that took the plan's layout and proved it best but for a gap."""
    problem = Problem(megatron.model, megatron.training, megatron.cluster, megatron.backend)
    best = Candidate(megatron.strategy, megatron.estimate)
    result = SearchResult(best, (), 2, 2, (), "chosen", ("toss-up: the simpler one is chosen",), gap=gap)
    return Answer(problem, result, (*result.notes, "best practice: another"), ("seq-len 8: it has 8 positions",))


def test_what_was_said_of_the_layout_before_is_said_to_be_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    solved, megatron = plan("solver"), plan("megatron")
    others, asked = other_operators(solved), PlanRequest("llama3-8b", operators="solver")
    pays = Combined(solved.strategy, others, solved.estimate, 1, 1, gap=0.01)
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", lambda *asked: pays)
    found = plan_of(asked, _with_solver(answer_of(megatron), asked))
    assert found.operators == solved.operators
    assert found.notes[0] == "seq-len 8: it has 8 positions"
    assert found.notes[1].startswith("operators by the solver: ")
    assert found.notes[2:4] == (
        "with Megatron's operators: toss-up: the simpler one is chosen",
        "with Megatron's operators: best practice: another",
    )
    none_pays = Combined(None, (), None, 0, 0, gap=0.01)
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", lambda *asked: none_pays)
    stays = plan_of(asked, _with_solver(answer_of(megatron), asked))
    assert stays.notes[:3] == ("seq-len 8: it has 8 positions", *answer_of(megatron).notes)
    assert stays.notes[3].startswith("operators: none make the step ")


def test_no_more_is_proven_than_the_search_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that stopped within 40 % of the optimum leaves layouts that the solver did not look at."""
    solved, megatron = plan("solver"), plan("megatron")
    problem, stopped, *_ = vars(answer_of(megatron, 0.4)).values()
    none_pays = Combined(None, (), None, 0, 0, gap=0.01)
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", lambda *asked: none_pays)
    found, *_ = _solved(problem, stopped, PlanRequest("llama3-8b"))
    assert found.optimality.endswith(" is more than 40 % faster, proven")
    pays = Combined(solved.strategy, other_operators(solved), solved.estimate, 1, 1, gap=0.01)
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", lambda *asked: pays)
    found, *_ = _solved(problem, stopped, PlanRequest("llama3-8b"))
    share = 100 * (1 - 0.6 * megatron.estimate.step_time_s / solved.estimate.step_time_s)
    assert found.optimality == (
        f"operators by the solver: no layout, however its operators are sharded, is more than {share:.2g} % faster, "
        "proven"
    )


def test_a_search_that_is_stopped_says_how_much_is_left() -> None:
    whole = search(*problem_of(plan("megatron"))[:3], Pins(tp=8, pp=4), "torch", top=0)
    stopped = search(*problem_of(plan("megatron"))[:3], Pins(tp=8, pp=4), "torch", top=0, time_limit_s=1e-3)
    assert whole.gap == pytest.approx(0, abs=PROVEN)
    assert 0 < stopped.gap < 1 and stopped.optimality.startswith("stopped after 0.001 s: within ")
    assert whole.best.estimate.step_time_s >= (1 - stopped.gap) * stopped.best.estimate.step_time_s


def test_what_is_proven_is_of_the_layout_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 s where a simpler layout is taken than the fastest of 98 s, which no choices beat by more than 1 %."""
    none_pays = Combined(None, (), None, 0, 0, gap=0.01)
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", lambda *asked: none_pays)
    megatron = plan("megatron")
    known = Candidate(megatron.strategy, replace(megatron.estimate, step_time_s=100.0))
    faster = Candidate(megatron.strategy, replace(megatron.estimate, step_time_s=98.0))
    problem = Problem(megatron.model, megatron.training, megatron.cluster, megatron.backend)
    result = SearchResult(known, (faster,), 2, 2, (), "chosen")
    found, operators, _ = _solved(problem, result, PlanRequest("llama3-8b"))
    assert operators is None
    assert found.optimality.endswith(" is more than 3 % faster, proven")  # 1 - 0.99 x 98 / 100
    assert _proven(0.2, known).endswith(" is more than 100 % faster, proven")


def test_the_file_says_the_same() -> None:
    text = plan_to_json(plan("solver"))
    assert plan_to_json(plan_from_dict(json.loads(text))) == text


def test_the_same_question_has_the_same_answer() -> None:
    text = plan_to_json(plan("solver"))
    assert plan_to_json(plan.__wrapped__("solver")) == text


def test_a_rehearsal_has_the_same_choices() -> None:
    solved = plan("solver")
    rule = operator_choices(solved.model, solved.training, solved.cluster, solved.strategy)
    changed = [name for name, choice in solved.operators.items() if choice != rule[name]]
    small = rehearse(solved, 8, 256).plan
    assert changed and all(small.operators[name]["tp"] == solved.operators[name]["tp"] for name in changed)
    assert small.sample_programs


def test_they_are_in_the_score_of_the_plan(tmp_path: Path) -> None:
    solved = plan("solver")
    write_plan(solved, tmp_path / "plan.json")
    for layout in (solved, tmp_path / "plan.json"):
        found = autoshard.score(layout)
        assert found.step_time_s == pytest.approx(solved.estimate.step_time_s, rel=1e-5)
        assert found.written.notes == (
            "operators as the plan has them; the planner's layout is searched with Megatron's",
        )
    assert autoshard.score(plan("megatron")).written.notes == ()


def pinned(solved: Plan) -> Plan:
    """The plan with its layout pinned."""
    names = ("tp", "pp", "cp", "microbatch_size", "zero")
    pins = Pins(recompute="none", **{name: getattr(solved.strategy, name) for name in names})
    return replace(solved, pins=pins)


def test_replanning_keeps_them_where_the_layout_still_has_them() -> None:
    solved = pinned(plan("solver"))
    again = replan(solved, 4).plan
    assert (again.strategy, again.operators) == (solved.strategy, solved.operators)
    assert again.estimate == solved.estimate
    assert again.search is not None and again.search.optimality.startswith("with Megatron's operators ")
    (note,) = (note for note in again.notes if note.startswith("operators"))
    by_rule = replan(
        replace(solved, operators=operator_choices(solved.model, solved.training, solved.cluster, solved.strategy)), 4
    ).plan
    step, megatron = (format_seconds(one.estimate.step_time_s) for one in (solved, by_rule))
    assert note == f"operators: those of the plan before stay: {step} a step, {megatron} with Megatron's"


def test_replanning_says_where_they_do_not_stay() -> None:
    solved = pinned(plan("solver"))
    other = replan(replace(solved, pins=replace(solved.pins, cp=1, microbatch_size=2)), 4).plan
    assert other.operators == operator_choices(other.model, other.training, other.cluster, other.strategy)
    (note,) = (note for note in other.notes if note.startswith("operators"))
    assert note == (
        "operators by Megatron's rule: those of the plan before do not go with this layout; --operators solver solves "
        "anew"
    )


def test_replanning_says_where_the_plan_before_is_faster() -> None:
    """Its layout pays with the solver's operators alone, which a search does not look at."""
    solved = plan("solver")
    other, fewer = replan(solved, 4).plan, replan(solved, 2).plan
    then, now = solved.estimate.step_time_s, other.estimate.step_time_s
    assert then < 0.99 * now
    said = f"{now / then - 1:.1%} faster: {format_seconds(then)} a step, {format_seconds(now)} here; keep it"
    assert f"the plan before is for as many nodes and {said}" in other.notes
    assert any(note.endswith("; --operators solver solves anew") for note in other.notes)
    assert not any(note.startswith("the plan before is") for note in (*fewer.notes, *replan(other, 4).plan.notes))


def test_nxd_has_layers_for_megatron_only() -> None:
    solved = plan("solver", "nxd")
    assert solved.operators == operator_choices(solved.model, solved.training, solved.cluster, solved.strategy)
    (note,) = (note for note in solved.notes if note.startswith("operators"))
    assert note.startswith("operators: none make the step 0.1% faster than Megatron's, which stay; blocks of ")


def test_without_highs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    plan.cache_clear()
    with pytest.raises(AutoshardError, match=r"^operators=solver needs HiGHS: pip install 'autoshard\[solver\]'$"):
        plan("solver")
