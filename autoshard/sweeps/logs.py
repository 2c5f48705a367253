"""Writes a sweep that is done as a plot, TensorBoard events and, where asked, a group of runs on Weights & Biases."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.sweeps.grid import Point, Sweep
from autoshard.sweeps.outcome import OK, RESULTS, Outcome
from autoshard.sweeps.plot import write_plot
from autoshard.sweeps.run import PLOT, POINTS, TABLE, Outcomes, group_of

NUMBERS = (
    *("devices", "step_time_s", "tokens_per_s", "mfu", "memory_bytes", "fits_probability"),
    *("measured_step_time_s", "last_loss"),
)
"""Fields of an Outcome that become curves over the points."""


def write_logs(sweep: Sweep, outcomes: Outcomes, folder: Path, project: str | None) -> tuple[str, ...]:
    """Writes plot.png, metrics.jsonl, TensorBoard and, with a project, one W&B run with a row for each point, the table
    and the plot, in the group of the points' own runs; returns lines that say where all of it went.

    Without matplotlib stderr says what to install. Raises AutoshardError where something cannot be written.
    """
    from autoshard.runtime.metrics import MetricsWriter

    places, plot = [str(folder / TABLE)], folder / PLOT
    try:
        drawn = write_plot(sweep, outcomes, plot)
    except AutoshardError as error:  # the table is there all the same
        sys.stderr.write(f"autoshard: {error}\n")
        drawn = False
    if drawn:
        places.append(str(plot))
    if project is None and not any(outcome.run for _, outcome in outcomes):
        return tuple(places)
    config = {**sweep.fixed, "grid": {name: list(values) for name, values in sweep.grid.items()}}
    group = group_of(sweep)
    with MetricsWriter(
        folder, wandb=project is not None, project=project or "", name=group, group=group, config=config
    ) as writer:
        for index, (point, outcome) in enumerate(outcomes):
            writer.write(index, _numbers(sweep, point, outcome))
        rows = [[*(point[name] for name in sweep.grid), *asdict(outcome).values()] for point, outcome in outcomes]
        writer.show("points", [*sweep.grid, *RESULTS], rows, plot if drawn else None)
        return (*places, *(_with_runs(line, folder) for line in writer.locations))


def _with_runs(line: str, folder: Path) -> str:
    """A line that says where the sweep's curves are, of those of its runs as well."""
    if line.startswith("tensorboard "):
        return f"tensorboard --logdir {folder}"
    of_runs = f"{POINTS}/*/*/wandb/offline-run-*"
    return f"{line} {folder}/{of_runs}" if line.startswith("wandb sync ") and any(folder.glob(of_runs)) else line


def _numbers(sweep: Sweep, point: Point, outcome: Outcome) -> dict[str, float]:
    options = {name: float(point[name]) for name in sweep.grid if isinstance(point[name], (int, float))}
    found = {name: float(getattr(outcome, name)) for name in NUMBERS if getattr(outcome, name) is not None}
    return {**options, "fits": float(outcome.status == OK), **found}
