"""`autoshard sweep`: plan a grid of problems, as a table and a plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text
from autoshard.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.sweeps.grid import Point, Sweep
    from autoshard.sweeps.table import Outcome

SUMMARY = "plan a grid of nodes, sequence lengths, batches, ...: table and plot"
USAGE = "autoshard sweep SWEEP [options]"
DESCRIPTION = """\
Plan every combination of a grid and write results.csv and plot.png. A second run plans only what is missing.
The sweep file (YAML) has options of `autoshard plan` with underscores, and under `grid` options with lists of values.

  autoshard sweep recipes/sweeps/llama3_70b_nodes.yaml
  autoshard sweep my_sweep.yaml --out results/my_sweep --wandb"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("sweep", type=path, metavar="SWEEP", help="sweep file (YAML)")
    parser.add_argument(
        "-o", "--out", type=path, metavar="FOLDER", help="where results go (default: sweeps/NAME of the sweep file)"
    )
    parser.add_argument(
        "--wandb", action="store_true", help="log each point to Weights & Biases (offline without an account)"
    )
    parser.add_argument("--wandb-project", type=text, metavar="NAME", default="autoshard", help="(default: autoshard)")
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.planner.planning import plan_for
    from autoshard.sweeps.grid import read_sweep
    from autoshard.sweeps.plot import write_plot
    from autoshard.sweeps.run import PLOT, TABLE, log_to_wandb, progress, run_sweep

    sweep = read_sweep(Path(values["sweep"]))
    folder = Path(values["out"] or Path("sweeps") / sweep.name)
    with progress(len(sweep.points), sys.stderr.isatty()) as advance:
        outcomes, planned = run_sweep(sweep, folder, plan_for, advance)
    places = [str(folder / TABLE)]
    try:
        if write_plot(sweep, outcomes, folder / PLOT):
            places.append(str(folder / PLOT))
    except AutoshardError as error:  # the table is there all the same
        sys.stderr.write(f"autoshard: {error}\n")
    if values["wandb"]:
        places += log_to_wandb(sweep, outcomes, folder, values["wandb_project"])
    if values["format"] == "json":
        say(json.dumps([{"options": dict(point), **asdict(outcome)} for point, outcome in outcomes], indent=1))
    else:
        _print_table(sweep, outcomes)
        already = len(outcomes) - planned
        say("", *([f"{already} of {len(outcomes)} points were in the table already"] if already else []), *places)
    return 0


def _print_table(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]]) -> None:
    from autoshard.explanation.page import paint, table

    header = (*(name.replace("_", " ") for name in sweep.grid), "step", "tokens/s", "MFU", "memory", "layout")
    rows = [(*(str(point[name]) for name in sweep.grid), *_cells(outcome)) for point, outcome in outcomes]
    width = page_width()
    sys.stdout.write(paint(table(header, rows, width, right=range(len(header) - 1)), width, wants_color()))


def _cells(outcome: Outcome) -> tuple[str, ...]:
    from autoshard.plans.names import shortened

    step, tokens, mfu, memory = outcome.step_time_s, outcome.tokens_per_s, outcome.mfu, outcome.memory_bytes
    if step is None or tokens is None or mfu is None or memory is None:
        return ("-", "-", "-", "-", f"{outcome.status}: {outcome.reason}")
    return (
        f"~{format_seconds(step)}",
        f"~{tokens:,.0f}",
        f"~{mfu:.1%}",
        f"~{format_bytes(memory)}",
        shortened(outcome.layout or ""),
    )
