"""`autoshard sweep`: plan a grid of problems and execute it where asked, as a table and a plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import autoshard
from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.files.option_values import path, text, whole
from autoshard.sweeps.outcome import DIFFERS, FAILED

SUMMARY = "plan a grid of nodes, sequence lengths, batches, ...: table and plot"
USAGE = "autoshard sweep SWEEP [options]"
DESCRIPTION = """\
Plan every combination of a grid and write results.csv and plot.png. A second run plans only what is missing, also
after the first was killed. With --run each plan is executed too, and what it took stands beside what was predicted;
exit code 1 says that a run failed.
The sweep file (YAML) has options of `autoshard plan` with underscores, and under `grid` options with lists of values.

  autoshard sweep recipes/sweeps/llama3_70b_nodes.yaml
  autoshard sweep my_sweep.yaml --out results/my_sweep --workers 8 --wandb
  autoshard sweep my_sweep.yaml --run --scheduler tcp://10.0.0.1:8786"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("sweep", type=path, metavar="SWEEP", help="sweep file (YAML)")
    parser.add_argument(
        "-o", "--out", type=path, metavar="FOLDER", help="where results go (default: sweeps/NAME of the sweep file)"
    )
    parser.add_argument(
        "--run", action="store_true", help="execute each plan, or rehearse it; `run` of the file has options of it"
    )
    where = parser.add_argument_group("where points are done")
    where.add_argument(
        "--workers",
        type=whole(),
        metavar="N",
        help="processes of this machine (default: one a core for many points; 1 with --run)",
    )
    where.add_argument(
        "--scheduler", type=text, metavar="ADDRESS", help="the workers of a Dask cluster, such as tcp://10.0.0.1:8786"
    )
    where.add_argument(
        "--shard", type=text, metavar="N/M", help="only the N-th of M parts, into a folder of its own in --out"
    )
    parser.add_argument(
        "--wandb", action="store_true", help="log each point to Weights & Biases (offline without an account)"
    )
    parser.add_argument("--wandb-project", type=text, metavar="NAME", default="autoshard", help="(default: autoshard)")
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    names = ("run", "workers", "scheduler", "shard", "wandb", "wandb_project")
    found = autoshard.sweep(values["sweep"], values["out"], **{name: values[name] for name in names})
    if values["format"] == "json":
        say(json.dumps([{"options": dict(point), **asdict(outcome)} for point, outcome in found.outcomes], indent=1))
    else:
        sys.stdout.write(found.page(page_width(), wants_color()))
        total = len(found.outcomes)
        already = total - found.planned
        say("", *([f"{already} of {total} points were in the table already"] if already else []), *found.places)
    return 1 if any(outcome.run in (FAILED, DIFFERS) for _, outcome in found.outcomes) else 0
