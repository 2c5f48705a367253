"""`autoshard report`: a plan as one HTML page for a colleague."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import number, path
from autoshard.interface.limits import TIME_LIMIT_S
from autoshard.units import format_bytes

OUT = "report.html"
SUMMARY = "a plan as one HTML page that needs no network"
USAGE = "autoshard report PLAN [-o FILE] [--measured FILE] [--quick] [--time-limit SECONDS]"
DESCRIPTION = """\
Write a plan as one HTML page for a browser: what was chosen and how sure that is, the mesh on the machine, the
pipeline's timeline, memory, all candidates, the runners-up, what would change the choice, a block's operators. The file
needs no network. Candidates and what would change the choice are searched anew, which takes some seconds, most for
torch on many devices (--quick, --time-limit).

  autoshard report plan.json -o report.html
  autoshard report runs/RUN/plan.json --measured runs/RUN/run.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "-o", "--out", type=path, metavar="FILE", default=OUT, help=f"where the page goes (default: {OUT})"
    )
    parser.add_argument("--measured", type=path, metavar="FILE", help="run.json of a run of this plan: draws both")
    parser.add_argument(
        "--quick", action="store_true", help="leave out the other candidates and what would change the choice"
    )
    parser.add_argument(
        "--time-limit",
        type=number,
        default=TIME_LIMIT_S,
        metavar="SECONDS",
        help=f"how long to look for each of these two (default: {TIME_LIMIT_S:g})",
    )


def run(values: Mapping[str, Any]) -> int:
    plan, out = load_plan(values["plan"]), values["out"]
    _check_folder(out)
    page = autoshard.report(
        plan, out, measured=values["measured"], quick=values["quick"], time_limit=values["time_limit"]
    )
    say(f"wrote {out}, {format_bytes(len(page.encode()))}; open it in a browser")
    return 0


def _check_folder(out: str) -> None:
    """Raises AutoshardError for a folder that is not there, before a minute is spent on what would go into it."""
    folder = Path(out).parent
    if not folder.is_dir():
        raise AutoshardError(f"report {out} cannot be written: {folder} is not a folder")
