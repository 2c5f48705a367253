"""The exact text of the page that explains a plan, narrow and wide. REGENERATE=1 writes the files anew."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.cost.values import Estimate, Term
from autoshard.explanation.describe import Description, describe
from autoshard.explanation.page import table
from autoshard.explanation.text import render
from autoshard.plans.differences import loses
from autoshard.plans.plan import Plan
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device

FOLDER = Path(__file__).parent


def plan_by_stage() -> Plan:
    """Stages that recompute different sets, and so do those of a runner-up."""
    plan = plan_70b()
    first, *others = plan.runners_up
    sets = ("attention_norm+attention+mlp_norm+mlp", *("mlp",) * 4, *("none",) * 3)
    other = replace(first.strategy, recompute=("full",) * 2 + ("mlp_norm+mlp",) * 6)
    runners_up = (replace(first, strategy=other), *others)
    return replace(plan, strategy=replace(plan.strategy, recompute=sets), runners_up=runners_up)


PAGES: list[tuple[str, Callable[[], Plan], int]] = [
    ("llama3_70b", plan_70b, 100),
    ("llama3_70b_narrow", plan_70b, 60),
    ("mixtral", plan_mixtral, 120),
    ("interleaved", plan_interleaved, 100),
    ("one_device", plan_one_device, 100),
    ("by_stage", plan_by_stage, 100),
]
pytestmark = pytest.mark.usefixtures("fixed_intervals")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(("name", "make", "width"), PAGES, ids=[name for name, _, _ in PAGES])
def test_page(name: str, make: Callable[[], Plan], width: int) -> None:
    golden = FOLDER / f"explain_{name}.txt"
    page = render(describe(make()), width)
    if os.environ.get("REGENERATE"):
        golden.write_text(page)
    assert page == golden.read_text()
    assert max(map(len, page.splitlines())) <= width


def test_colour_adds_nothing_but_colour() -> None:
    description = describe(plan_70b())
    coloured = render(description, 100, color=True)
    assert "\x1b[" in coloured
    plain = "\n".join(line.rstrip() for line in ANSI.sub("", coloured).splitlines())
    assert plain + "\n" == render(description, 100)


def test_json_has_every_number_of_the_page() -> None:
    description = describe(plan_70b())
    values = json.loads(json.dumps(description.to_dict()))
    assert values["step_time_s"] == description.step_time_s
    assert [one["name"] for one in values["time_terms"]] == [term.name for term in plan_70b().estimate.time_terms]
    assert values["runners_up"][0]["differences"][0] == ["recompute", pytest.approx(16.0)]
    assert values["rejections"] == [
        {"reason": "does not fit in memory", "count": 1200, "example": "tp=8 pp=8 dp=8: 33.1 GB of 17.2 GB"}
    ]


def test_terms_add_up() -> None:
    description = describe(plan_70b())
    assert sum(term.value for term in description.time_terms) == pytest.approx(description.step_time_s, rel=1e-5)
    assert sum(term.share for term in description.time_terms) == pytest.approx(1, rel=1e-5)
    assert sum(term.value for term in description.memory_terms) == description.memory_bytes


def test_small_terms_are_summed_up() -> None:
    plan = plan_70b()
    terms = (Term("large", 99.96), Term("tiny", 0.03), Term("tinier", 0.01), Term("absent", 0.0))
    page = render(describe(replace(plan, estimate=replace(plan.estimate, step_time_s=100.0, time_terms=terms))))
    assert "  large              ~100 s  100.0%" in page
    assert "  2 smaller terms  ~40.0 ms    0.0%" in page
    assert "absent" not in page


def test_a_plan_that_was_not_searched() -> None:
    page = render(describe(replace(plan_70b(), search=None, runners_up=(), notes=())))
    assert "considered" not in page
    assert "Runners-up" not in page


def estimate(**seconds: float) -> Estimate:
    plan = plan_one_device()
    terms = tuple(Term(name, value) for name, value in seconds.items())
    return replace(plan.estimate, step_time_s=sum(seconds.values()), time_terms=terms)


def test_what_a_runner_up_loses() -> None:
    best = estimate(compute=10.0, bubble=1.0, collectives=5.0)
    # bubble +2 s, collectives -0.5 s; compute equal
    assert (
        loses(best, estimate(compute=10.0, bubble=3.0, collectives=4.5)) == "+2.00 s bubble; saves 500 ms collectives"
    )
    assert loses(best, best) == "every term is the same"
    assert (
        loses(best, estimate(compute=10.01, bubble=0.99, collectives=5.0)) == "+10.0 ms compute; saves 10.0 ms bubble"
    )
    # a gain of a term that is small against the loss is not worth a word
    assert loses(best, estimate(compute=14.0, bubble=0.9, collectives=5.0)) == "+4.00 s compute"


def test_a_narrow_table_puts_the_last_column_below() -> None:
    lines = table(("a", "why"), [("x" * 40, "because of this")], width=60, right=())
    texts = ["".join(text for text, _ in line).rstrip() for line in lines]
    assert texts == ["  a", "      why", "  " + "x" * 40, "      because of this"]


def test_a_narrow_table_wraps_a_column_that_is_wider_than_the_page() -> None:
    lines = table(("dropped", "because", "nearest"), [("1,234", "word " * 12, "why")], width=60, right=(0,))
    texts = ["".join(text for text, _ in line) for line in lines]
    words = ["    1,234  " + "word " * 9 + "word", "      word word", "      why"]
    assert texts == ["  dropped  because", "      nearest", *words]


def test_wide_and_narrow_terminals_are_clamped() -> None:
    description: Description = describe(plan_70b())
    assert render(description, 10) == render(description, 60)
    assert render(description, 500) == render(description, 120)
