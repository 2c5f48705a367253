"""Runs a sweep: plans the points that are missing, keeps the table up to date, then shows, plots and logs all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.planner.options import request_from
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan
from autoshard.sweeps.grid import Point, Sweep
from autoshard.sweeps.table import (
    DOES_NOT_FIT,
    INVALID,
    OK,
    Outcome,
    Row,
    key_of,
    outcome_of,
    read_table,
    row_of,
    write_table,
)

TABLE, PLOT = "results.csv", "plot.png"

Outcomes = Sequence[tuple[Point, Outcome]]
Advance = Callable[[str], None]
"""A function that is called with a word on each point that is done."""


def run_sweep(
    sweep: Sweep, folder: Path, plan_for: Callable[[PlanRequest], Plan], advance: Advance
) -> tuple[Outcomes, int]:
    """(every point with its outcome, in grid order; how many were planned now). Rows of other sweeps stay in the table.

    Raises AutoshardError where no point could even be planned, and where the table cannot be read or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AutoshardError(f"folder {folder} cannot be made: {error.strerror}") from None
    table = folder / TABLE
    rows: dict[tuple[str, ...], Row] = {row.key: row for row in read_table(table)}
    planned = 0
    for point in sweep.points:
        key = key_of(point)
        if key not in rows:
            rows[key] = row_of(point, plan_point(point, plan_for))
            planned += 1
            write_table(table, tuple(rows.values()))
        advance(rows[key].outcome.status)
    outcomes = [(point, rows[key_of(point)].outcome) for point in sweep.points]
    if all(outcome.status == INVALID for _, outcome in outcomes):
        raise AutoshardError(f"no point of the sweep can be planned: {outcomes[0][1].reason}")
    return outcomes, planned


def plan_point(point: Point, plan_for: Callable[[PlanRequest], Plan]) -> Outcome:
    """The outcome of planning one point. A point that does not fit or asks for something impossible is an outcome, too;
    it does not end the sweep."""
    try:
        return outcome_of(plan_for(request_from(point, top=0)))
    except NoLayoutFits as error:
        return Outcome(DOES_NOT_FIT, str(error))
    except AutoshardError as error:
        return Outcome(INVALID, str(error))


def log_to_wandb(sweep: Sweep, outcomes: Outcomes, folder: Path, project: str) -> tuple[str, ...]:
    """Logs the sweep as one W&B run with a step for each point; returns lines that say where the numbers went."""
    from autoshard.runtime.metrics import MetricsWriter

    config = {**sweep.fixed, "grid": {name: list(values) for name, values in sweep.grid.items()}}
    with MetricsWriter(folder, wandb=True, project=project, name=f"sweep {sweep.name}", config=config) as writer:
        for index, (point, outcome) in enumerate(outcomes):
            writer.write(index, _numbers(sweep, point, outcome))
        return writer.locations


def _numbers(sweep: Sweep, point: Point, outcome: Outcome) -> dict[str, float]:
    options = {name: float(point[name]) for name in sweep.grid if isinstance(point[name], (int, float))}
    names = ("devices", "step_time_s", "tokens_per_s", "mfu", "memory_bytes")
    found = {name: float(getattr(outcome, name)) for name in names if getattr(outcome, name) is not None}
    return {**options, "fits": float(outcome.status == OK), **found}


@contextmanager
def progress(total: int, shown: bool) -> Iterator[Advance]:
    """A bar on stderr with the time left, as a function to call for each point; it shows nothing where `shown` is
    False."""
    if not shown:
        yield lambda word: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("planning"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[word]}"),
    )
    bar: AbstractContextManager[Progress] = Progress(*columns, console=Console(stderr=True), transient=True)
    with bar as running:
        task = running.add_task("planning", total=total, word="")
        yield lambda word: running.update(task, advance=1, word=word)
