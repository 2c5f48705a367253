"""The first screen of `plan`: at most 20 lines on 80 columns, every term plain or in the glossary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.cli import main
from autoshard.cost.memory import MEMORY_TERMS
from autoshard.cost.step import TIME_TERMS
from autoshard.explanation.describe import Description, describe
from autoshard.explanation.glossary import SECTIONS, glossary
from autoshard.explanation.summary import FACTS, summary
from autoshard.explanation.text import render
from autoshard.plans.layout_syntax import CHOICES, DEGREES
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import LESS_SURE
from autoshard.schedules import SCHEDULES
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device

FOOTER = 4
"""Lines that the command adds: an empty one, where the plan is, what comes next, where the terms are."""
KNOWN = {term for terms in SECTIONS.values() for term in terms}


@pytest.mark.parametrize("make", [plan_70b, plan_interleaved, plan_mixtral, plan_one_device])
def test_it_answers_within_20_lines(make: Callable[[], Plan]) -> None:
    page = summary(describe(make()), 80, color=False)
    assert len(page.splitlines()) + FOOTER <= 20
    assert max(map(len, page.splitlines())) <= 80
    assert [line[2:9].strip() for line in page.splitlines() if line[2:3].strip()][1:] == [
        "Chosen", "Fast?", "Fits?", "Sure?"
    ]  # fmt: skip


@pytest.mark.parametrize("page", [summary, render])
def test_a_long_name_on_many_devices_is_wrapped(page: Callable[[Description, int, bool], str]) -> None:
    """The 405B on 1,024 nodes of trn2 with backend torch has 81 characters in its first line."""
    told = replace(describe(plan_70b()), device="logical NeuronCore", num_devices=65_536, backend="torch")
    for model, width in (("llama3.1-405b", 80), ("a-model-of-my-own-" * 5, 80), ("llama3.1-405b", 60)):
        lines = page(replace(told, model=model, cluster="1024 x trn2.48xlarge"), width, False).splitlines()
        assert max(map(len, lines)) <= width
        assert "".join(lines[:2]).replace(" ", "").startswith(f"{model}on1024xtrn2.48xlarge")


@pytest.mark.parametrize(
    ("alike", "said"),
    [
        ((True, True), "; all of the next 2 may be as fast"),
        ((True, False), "; 1 of the next 2 may be as fast"),
        ((True,), "; the next one may be as fast"),
    ],
)
def test_how_many_may_be_as_fast(alike: tuple[bool, ...], said: str) -> None:
    told = describe(plan_70b())
    runners_up = tuple(replace(told.runners_up[0], toss_up=one) for one in alike)
    page = summary(replace(told, runners_up=runners_up), 200, color=False)
    assert said in " ".join(page.split())


@pytest.mark.parametrize("make", [plan_70b, plan_mixtral])
def test_facts_that_are_not_asked_for_change_no_other(make: Callable[[], Plan]) -> None:
    every, few = describe(make()), describe(make(), facts=FACTS)
    assert few == replace(every, facts=tuple(fact for fact in every.facts if fact[0] in FACTS))
    assert summary(few, 80, color=False) == summary(every, 80, color=False)


@pytest.mark.parametrize(
    ("probability", "said"),
    [
        (0.9999, "yes, with more than 99.9 % probability"),
        (0.9, "yes, with 90.0 % probability"),
        (0.6, "likely, with 60.0 % probability"),
        (0.2, "hardly, with 20.0 % probability"),
        (0.05, "no, only with 5.0 % probability"),
        (0.0, "no, only with less than 0.1 % probability"),
    ],
)
def test_whether_it_fits(probability: float, said: str) -> None:
    page = summary(replace(describe(plan_70b()), fits_probability=probability), 200, color=False)
    assert f"Fits? {said}: ~" in " ".join(page.split())


def test_what_it_says_by_hand() -> None:
    plan = plan_70b()
    assert plan.search is not None
    page = " ".join(summary(describe(plan), 80, color=False).split())
    assert f"Chosen {describe(plan).layout} mesh: " in page
    assert f"~{plan.estimate.mfu:.1%} of the devices' peak (MFU)" in page
    assert f"Sure? chosen from {plan.search.considered:,} layouts: {plan.search.optimality}" in page
    given = " ".join(summary(describe(replace(plan, search=None, runners_up=())), 80, color=False).split())
    assert given.endswith("Sure? this layout was given, not searched")


def test_a_claim_leaves_to_the_whole_page_what_was_not_tried() -> None:
    plan = plan_70b()
    assert plan.search is not None
    claim = "within 11 % of the optimum within this model, proven (recompute is one of 8 sets; --recompute takes any)"
    page = " ".join(summary(describe(replace(plan, search=replace(plan.search, optimality=claim))), 80, False).split())
    assert "within 11 % of the optimum within this model, proven, but for what the whole page names; " in page


def test_a_layout_that_nobody_ran_says_so() -> None:
    note = "beaten path: nobody is known to have run recompute=mlp on trn1 with backend nxd: it may not compile"
    page = " ".join(summary(describe(replace(plan_70b(), notes=(note,))), 80, color=False).split())
    assert page.endswith("; nobody is known to have run all of it, so it may not compile (1 note on the whole page)")


def test_a_faster_layout_that_fits_less_surely_is_told() -> None:
    note = (
        f"{LESS_SURE} 52.3 % faster, fits with 53 % probability: pp=2 dp=16; layouts that fit with less are not taken"
    )
    told = replace(describe(plan_70b()), notes=(note,), device="NeuronCore")
    page = " ".join(summary(told, 80, color=False).split())
    assert "on the fullest NeuronCore; another layout, 52.3 % faster, fits with 53 % probability (--fit-prob" in page


def test_layouts_stay_readable_where_stages_differ() -> None:
    plan = plan_70b()
    sets = ("attention_norm+attention+mlp_norm+mlp", *("mlp",) * (len(plan.strategy.recompute) - 1))
    page = summary(describe(replace(plan, strategy=replace(plan.strategy, recompute=sets))), 80, color=False)
    assert "recompute=by-stage" in page and "attention_norm+" not in page
    assert "recompute: run again in backward, by stage: 0 both norms" in " ".join(page.split())


def test_every_term_is_in_the_glossary() -> None:
    assert {*TIME_TERMS, *MEMORY_TERMS, *DEGREES, *CHOICES, *SCHEDULES, "sp", "adapters"} <= KNOWN
    text = glossary(80, color=False)
    assert max(map(len, text.splitlines())) <= 80
    for term in KNOWN:
        assert f"  {term}" in text


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["plan", "--model", "llama3-8b", "--nodes", "1"]
    assert main(asked) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 20 and max(map(len, short.splitlines())) <= 80
    assert short.endswith(
        "\nwrote plan.json; next: autoshard run plan.json\nwhy, and what else: autoshard explain plan.json\n"
        "the terms in plain words: autoshard explain --glossary\n"
    )
    assert main([*asked, "--verbose"]) == 0
    whole = capsys.readouterr().out
    assert "\nRunners-up" in whole and "\nHow sure" in whole
    assert main(["explain", "plan.json", "--quick"]) == 0
    assert whole == capsys.readouterr().out + "\nwrote plan.json; next: autoshard run plan.json\n"
    assert main(["explain", "--glossary"]) == 0
    assert capsys.readouterr().out == glossary(80, color=False)
    assert main(["explain"]) == 2
    said = "autoshard: error: PLAN is missing: autoshard explain plan.json, or autoshard explain --glossary\n"
    assert capsys.readouterr().err == said
    for more, named in ((["p.json"], "p.json"), (["--why", "tp=8"], "--why"), (["--schedule"], "--schedule")):
        assert main(["explain", "--glossary", *more]) == 2
        assert capsys.readouterr().err == (
            f"autoshard: error: --glossary explains terms and prints nothing else; leave {named} out\n"
        )
