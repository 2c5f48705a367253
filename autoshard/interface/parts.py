"""A plan piece by piece: its page as it becomes known, single parts of it, other people's pages, the glossary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autoshard.plans import plan as plans

if TYPE_CHECKING:
    from autoshard.explanation.page import Line

PARTS = ("schedule", "operators", "measured")
"""Parts of a plan that are shown by themselves."""


def page_pieces(plan: plans.Plan, *, quick: bool, time_limit: float, width: int, color: bool) -> Iterator[str]:
    """Yields the page of `explain` in pieces of whole lines: all that is known at once, then what would change the
    choice as it is found, by two processes where there are as many cores. quick, time_limit: as `explain` takes them.
    width: columns."""
    from autoshard.doctor.machine import num_cores
    from autoshard.explanation.describe import describe
    from autoshard.explanation.text import pieces
    from autoshard.interface.questions import answers_of

    return pieces(describe(plan), [] if quick else answers_of(plan, time_limit, min(2, num_cores())), width, color)


def parts_page(plan: plans.Plan, parts: Sequence[str], measured: str | None, width: int, color: bool) -> str:
    """Some of PARTS as text. measured: run.json of a run of the plan. width: columns. Raises AutoshardError for a run
    of another plan."""
    from autoshard.explanation.page import NARROWEST, WIDEST, paint
    from autoshard.explanation.parts import part_lines

    columns = max(NARROWEST, min(width, WIDEST))
    lines: list[Line] = []
    for name in parts:
        lines += [*([()] if lines else []), *part_lines(plan, name, measured, columns)]
    return paint(lines, columns, color)


def parts_to_dict(plan: plans.Plan, parts: Sequence[str], measured: str | None) -> dict[str, Any]:
    """Some of PARTS as JSON values by name. Raises AutoshardError for a run of another plan."""
    from autoshard.explanation.parts import part_to_json

    return {name: part_to_json(plan, name, measured) for name in parts}


def rendered_by(plan: plans.Plan, form: str) -> str:
    """The page that a plug-in's renderer makes of a plan. Raises AutoshardError where it returns no text."""
    from autoshard.explanation.describe import describe
    from autoshard.explanation.renderers import rendered

    return rendered(describe(plan), form).removesuffix("\n") + "\n"


def glossary_page(width: int, color: bool) -> str:
    """Every term of the pages in plain words. width: columns."""
    from autoshard.explanation.glossary import glossary

    return glossary(width, color)
