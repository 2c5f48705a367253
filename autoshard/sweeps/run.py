"""Runs a sweep: does the points that are missing, here or elsewhere, and keeps the table up to date."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from autoshard.checkpoint.lock import directory_lock
from autoshard.errors import AutoshardError
from autoshard.sweeps.grid import Point, Sweep, word
from autoshard.sweeps.outcome import FAILED, INVALID, LOST, OK, Outcome, asked_of
from autoshard.sweeps.point import PlanFor, Spread, Task, in_turn
from autoshard.sweeps.table import Key, Row, append_row, key_of, option_columns, read_table, row_of, write_table

TABLE, PLOT, SHARDS, POINTS = "results.csv", "plot.png", "shards", "points"

Outcomes = Sequence[tuple[Point, Outcome]]
Advance = Callable[[str], None]
"""A function that is called with a word on each point that is done."""


def run_sweep(
    sweep: Sweep,
    folder: Path,
    plan_for: PlanFor,
    advance: Advance,
    spread: Spread | None = None,
    run: Mapping[str, Any] | None = None,
    project: str | None = None,
) -> tuple[Outcomes, int]:
    """(every point with its outcome, in grid order; how many were done now). Rows of other sweeps stay in the table.

    spread: does the points; None: this process, one after the other, with plan_for. run: fields of RunOptions with
    which each plan is executed; None: points are only planned. project: of Weights & Biases, for runs that log there;
    runs that were done before are not done again for it.
    Raises AutoshardError where no point could even be planned, whose rows the table does not keep, where it cannot be
    read or written, and where another sweep writes to the folder.
    """
    table = folder / TABLE
    asked = None if run is None else asked_of(run)
    with directory_lock(folder, "out"):
        before = read_table(table)
        rows = _known_rows((*(read_table(one) for one in sorted(folder.glob(f"{SHARDS}/*/{TABLE}"))), before), asked)
        keys = [key_of(point) for point in sweep.points]
        wanted = set(keys)
        order = [*(key for key in rows if key not in wanted), *keys]
        tasks: dict[int, tuple[Task, Key, Point]] = {}
        for key, point in zip(keys, sweep.points, strict=True):
            if key in rows and _is_done(rows[key].outcome, asked):
                advance(rows[key].outcome.status)
            else:
                task = Task(point, str(_folder_of(sweep, folder, point, key)), run, project, group_of(sweep))
                tasks[id(task)] = task, key, point
        columns = option_columns([*rows.values(), *(row_of(point, Outcome(OK)) for _, _, point in tasks.values())])
        write_table(table, [rows[key] for key in order if key in rows], columns)
        for task, outcome in (spread or in_turn(plan_for))([task for task, _, _ in tasks.values()]):
            _, key, point = tasks[id(task)]
            rows[key] = row_of(point, outcome)
            append_row(table, rows[key], columns)
            advance(outcome.status)
        outcomes = [(point, rows[key].outcome) for key, point in zip(keys, sweep.points, strict=True)]
        if all(outcome.status == INVALID for _, outcome in outcomes):
            _write_again(table, before)
            raise AutoshardError(f"no point of the sweep can be planned: {outcomes[0][1].reason}")
        write_table(table, [rows[key] for key in order], columns)
    return outcomes, len(tasks)


def _write_again(table: Path, before: Sequence[Row]) -> None:
    """Leave the rows that were there before a sweep, or no table where there were none."""
    if before:
        write_table(table, before)
    else:
        table.unlink(missing_ok=True)


def group_of(sweep: Sweep) -> str:
    """The group of the sweep's runs on Weights & Biases."""
    return f"sweep {sweep.name}"


def _known_rows(tables: Sequence[Sequence[Row]], asked: Mapping[str, str] | None) -> dict[Key, Row]:
    """The rows of several tables by key: of equal keys the one that is worth most, of equal worth the last."""

    def worth(row: Row) -> tuple[bool, ...]:
        outcome = row.outcome
        return _is_done(outcome, asked), outcome.run not in ("", FAILED), outcome.status != LOST

    rows: dict[Key, Row] = {}
    for table in tables:
        for key, row in {row.key: row for row in table}.items():
            if key not in rows or worth(row) >= worth(rows[key]):
                rows[key] = row
    return rows


def _is_done(outcome: Outcome, asked: Mapping[str, str] | None) -> bool:
    """Whether a row of the table is what is asked for. Points whose worker was killed, and runs that failed, are done
    again. asked: of `asked_of`; None: points are only planned."""
    if outcome.status != OK or asked is None:
        return outcome.status != LOST
    return outcome.run not in ("", FAILED) and all(getattr(outcome, name) == value for name, value in asked.items())


def _folder_of(sweep: Sweep, folder: Path, point: Point, key: Key) -> Path:
    """A folder for the point's run: its place in the grid, for people, and a digest of all of it."""
    words = ",".join(f"{name}={word(point[name])}" for name in sweep.grid)
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]
    return folder.resolve() / POINTS / f"{re.sub(r'[^A-Za-z0-9=,._-]+', '-', words)[:100]}-{digest}"


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
