"""Everything that a page shows of a plan, gathered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.explanation.describe import Description, describe
from autoshard.explanation.measured import Run, beside_plan, of_this_plan
from autoshard.explanation.sensitivity import answers_so_far
from autoshard.explanation.trace import measured_events
from autoshard.planner.priced import Clock
from autoshard.plans.plan import Plan
from autoshard.reports.candidates import Candidates, candidates
from autoshard.reports.pipeline import Span, measured_rows, predicted_rows

Rows = Sequence[tuple[str, Sequence[Span]]]
NO_ROWS: Rows = ()


@dataclass(frozen=True)
class View:
    """A plan and what is shown of it.

    rows: what each pipeline rank does in a step. found: the priced layouts; None where none are shown. run: what was
    measured, with measured_rows, empty where the run was not profiled; None without a run.
    """

    plan: Plan
    description: Description
    rows: Rows
    found: Candidates | None
    run: Run | None
    measured_rows: Rows = ()


def view_of(plan: Plan, *, measured: str | None = None, quick: bool = False, time_limit_s: float = 60.0) -> View:
    """The view of a plan.

    measured: run.json of a run of it. quick: leave out what searches again: the priced layouts and what would change
    the choice. time_limit_s: seconds that these may take.
    Raises AutoshardError for a run of another plan and a file that is no run.json.
    """
    run, executed = None, NO_ROWS
    if measured is not None:
        values = of_this_plan(plan, measured)
        run = beside_plan(plan, values)
        if values.profile is not None:
            executed = measured_rows(measured_events(plan, measured))
    clock = Clock(time_limit_s)
    found = None if quick else candidates(plan, time_limit_s)
    answers = [] if quick else [*answers_so_far(plan, clock)]
    return View(plan, describe(plan, answers[-1] if answers else None), predicted_rows(plan), found, run, executed)
