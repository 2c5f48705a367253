"""`autoshard sweep`: plan a grid of problems, as a table and a plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import autoshard
from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text

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
    from autoshard.sweeps.plot import write_plot
    from autoshard.sweeps.run import PLOT, TABLE, log_to_wandb

    found = autoshard.sweep(values["sweep"], values["out"])
    sweep, outcomes, folder = found.sweep, found.outcomes, found.folder
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
        sys.stdout.write(found.page(page_width(), wants_color()))
        already = len(outcomes) - found.planned
        say("", *([f"{already} of {len(outcomes)} points were in the table already"] if already else []), *places)
    return 0
