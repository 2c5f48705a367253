"""The whole page of six recipes, at 80 and 120 columns, plain and in colour, and as Markdown. REGENERATE=1 writes anew.

The numbers are by hand, and the intervals those of tests/golden/intervals.json: no text changes with the cost model.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoshard.explanation.describe import Description, describe
from autoshard.explanation.markdown import render_markdown
from autoshard.explanation.text import render
from autoshard.units import GB, TFLOPS, format_bytes, format_count, format_seconds, percent
from tests.unit.explain_examples import RECIPE_NAMES, answers_by_hand, recipe_plan

FOLDER = Path(__file__).parent
ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?")
WIDTHS = (80, 120)


pytestmark = pytest.mark.usefixtures("fixed_intervals")


def description(name: str) -> Description:
    return describe(recipe_plan(name), answers_by_hand())


def compare(file: Path, text: str) -> None:
    if os.environ.get("REGENERATE"):
        file.write_text(text)
    assert text == file.read_text()


def test_there_are_six_recipes() -> None:
    assert len(RECIPE_NAMES) >= 6


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_page(name: str, width: int) -> None:
    page = render(description(name), width)
    compare(FOLDER / "recipes" / f"{name}_{width}.txt", page)
    assert max(map(len, page.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_colour_adds_nothing_but_colour(name: str, width: int) -> None:
    coloured = render(description(name), width, color=True)
    assert "\x1b[" in coloured
    plain = "\n".join(line.rstrip() for line in ANSI.sub("", coloured).splitlines())
    assert plain + "\n" == render(description(name), width)


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_markdown(name: str) -> None:
    compare(FOLDER / "recipes" / f"{name}.md", render_markdown(description(name)))


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_every_number_is_the_plans(name: str) -> None:
    """Each number on the page is one of the description, in one of the ways in which pages write numbers."""
    found = description(name)
    shown = {"90", *(text for leaf in leaves(found.to_dict()) for text in written(leaf, found))}
    for page in (render(found, 120), render_markdown(found)):
        assert set(NUMBER.findall(page)) - shown == set()


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_json_round_trip(name: str) -> None:
    values = description(name).to_dict()
    assert json.loads(json.dumps(values))["time_terms"] == list(values["time_terms"])


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_terms_sum(name: str) -> None:
    found, estimate = description(name), recipe_plan(name).estimate
    assert sum(term.value for term in found.time_terms) == pytest.approx(estimate.step_time_s, rel=1e-5)
    assert sum(term.value for term in found.memory_terms) == pytest.approx(estimate.fullest.total_bytes, rel=1e-9)
    for one, candidate in zip(found.runners_up, recipe_plan(name).runners_up, strict=True):
        total = sum(seconds for _, seconds in one.differences)
        assert total == pytest.approx(
            candidate.estimate.step_time_s - estimate.step_time_s, abs=1e-3 * found.step_time_s
        )


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for one in value.values():
            yield from leaves(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def written(leaf: Any, found: Description) -> Iterator[str]:
    """Every way in which a page may write it."""
    if isinstance(leaf, str):
        yield from NUMBER.findall(leaf)
        return
    if leaf is None or isinstance(leaf, bool):
        return
    slow, fast = found.step_time_s / found.step_time_high_s, found.step_time_s / found.step_time_low_s
    for value in (leaf, 1 - leaf, leaf * slow, leaf * fast, leaf / found.memory_capacity_bytes, leaf / TFLOPS):
        texts = (
            *(shown(value) for shown in (format_seconds, format_bytes, format_count, percent)),
            f"{value:,.0f}",
            f"{value:.3g}",
            f"{value:.1%}",
            f"{value:.0%}",
            f"{abs(value):.1%}",
            f"{value / GB:.1f}",
            f"{value:,.2f}",
            f"{value:g}",
        )
        for text in texts:
            yield from NUMBER.findall(text)
