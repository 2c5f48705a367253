"""A plan as a page for a colleague."""

from __future__ import annotations

from pathlib import Path

from autoshard.files.atomic_file import write_text
from autoshard.interface.inputs import check_plan, look_s, path_text
from autoshard.interface.limits import TIME_LIMIT_S
from autoshard.interface.watch import watched
from autoshard.plans import plan as plans


def report(
    plan: plans.Plan,
    out: str | Path | None = None,
    *,
    measured: str | Path | None = None,
    quick: bool = False,
    time_limit: float = TIME_LIMIT_S,
) -> str:
    """A plan as one HTML file that needs no network: what was chosen and how sure that is, in words, tables and
    pictures. Returns its text.

    out: a file to write it to. measured: run.json of a run of the plan, to show beside what was predicted. quick: leave
    out what searches again: the other layouts and what would change the choice. time_limit: seconds that each of these
    may take.

    Raises AutoshardError for a run of another plan, and a file that cannot be read or written.

    >>> import autoshard
    >>> page = autoshard.report(autoshard.plan("llama3-8b", nodes=4), quick=True)
    >>> page.startswith("<!doctype html>"), len(page) < 2_000_000
    (True, True)
    """
    from autoshard.reports.page import report_page
    from autoshard.reports.view import view_of

    check_plan("report", plan)
    limit_s = look_s("report", quick, time_limit)
    file = None if measured is None else path_text("report", "measured", measured)
    with watched(f"reporting on {plan.model.name}"):
        page = report_page(view_of(plan, measured=file, quick=quick, time_limit_s=limit_s))
    if out is not None:
        write_text(out, page, "report")
    return page
