"""Two plans on one page: what differs, their terms, and their pictures side by side on one scale of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autoshard.explanation.compare import compare
from autoshard.explanation.doubt_text import RATIO, number_rows, verdict
from autoshard.plans.plan import Plan
from autoshard.reports.html import Html, code, element, table
from autoshard.reports.page import document
from autoshard.reports.pipeline import packed
from autoshard.reports.sections import capital, machine, memory, pictures, pipeline, section, term_pairs
from autoshard.reports.view import View, view_of
from autoshard.units import format_bytes, format_seconds


def comparison_report(one: Plan, other: Plan, names: tuple[str, str] | None = None) -> str:
    """The comparison of two plans as an HTML file. names: what the two are called, such as their files."""
    html, data = comparison_body((view_of(one, quick=True), view_of(other, quick=True)), names)
    return document(_title(names), html, data, one.made_by)


def _title(names: tuple[str, str] | None) -> str:
    return "Two plans" if names is None else f"{names[0]} beside {names[1]}"


def comparison_body(views: tuple[View, View], names: tuple[str, str] | None = None) -> tuple[Html, dict[str, Any]]:
    """(the sections of a comparison, what pictures.js draws in them)."""
    found = compare(views[0].plan, views[1].plan)
    different = [(what, a, b) for what, a, b in found.different]
    html = [
        element("h1", _title(names)),
        element("p", f"{capital(verdict(found))}."),
        section("What differs", "", table("What differs", ("", "first", "second"), different) if different else _EQUAL),
        section("Time", "", term_pairs(found.time, format_seconds, "Terms of a step")),
        section("Memory", "", term_pairs(found.memory, format_bytes, "Memory of each plan's fullest device")),
        section(
            "Numbers", "", table("What the two reach", ("", "first", "second", RATIO), number_rows(found), (1, 2, 3))
        ),
        _sides(views, names),
        section("What is the same", "", table("What is the same", ("", "both"), found.same) if found.same else _NONE),
    ]
    return Html("".join(html)), _pictures(views)


_EQUAL, _NONE = element("p", "Nothing: the two plans choose the same."), element("p", "Nothing.")


def _sides(views: tuple[View, View], names: tuple[str, str] | None) -> Html:
    sides = [
        element("div", element("h2", title, id=f"plan-{number}"), _what(view), *map(Html, parts))
        for number, (title, view, parts) in enumerate(
            zip(_titles(names), views, zip(*_rows(views), strict=True), strict=True), 1
        )
    ]
    return element("div", sides, class_="pair")


def _titles(names: tuple[str, str] | None) -> tuple[str, str]:
    return ("The first plan", "The second plan") if names is None else (f"First: {names[0]}", f"Second: {names[1]}")


def _what(view: View) -> Html:
    d = view.description
    return element("p", f"{d.model} on {d.cluster}: ", code(d.layout))


def _rows(views: Sequence[View]) -> list[list[str]]:
    return [[_numbered(part(view), place) for place, view in enumerate(views)] for part in (pipeline, memory, machine)]


def _numbered(html: str, place: int) -> str:
    """A part of a plan's page with a number behind its ids and names of pictures, so that a page may have it twice, and
    with the plan in front of what a screen reader calls each section, table and picture. place: 0 or 1, of the plan.

    Texts have no bare quote.
    """
    html = re.sub(r'\b(id|data-picture)="([^"]*)"', rf'\1="\2_{place}"', html)
    html = re.sub(r'\baria-labelledby="([^"]*)"', rf'aria-labelledby="plan-{place + 1} \1_{place}"', html)
    return re.sub(r'\baria-label="', f'aria-label="{("First", "Second")[place]} plan: ', html)


def _pictures(views: tuple[View, View]) -> dict[str, Any]:
    longest_s = max(view.description.step_time_s for view in views)
    found = dict[str, Any]()
    for place, view in enumerate(views):
        drawn = {**pictures(view), "timeline": packed("predicted", view.rows, longest_s)}
        found |= {f"{name}_{place}": value for name, value in drawn.items()}
    return found
