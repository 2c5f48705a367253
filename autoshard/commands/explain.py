"""`autoshard explain`: what a plan does and why it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.commands.output import show_plan
from autoshard.commands.parser import Parser, one_of, path

SUMMARY = "what a plan does and why it was chosen"
USAGE = "autoshard explain PLAN [--format text|json]"
DESCRIPTION = """\
Print what a plan does and why it was chosen over others: the page that `autoshard plan` prints.

  autoshard explain plan.json
  autoshard explain plan.json --format json | jq .step_time_s"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--format",
        type=one_of("text", "json"),
        metavar="text|json",
        default="text",
        help="what is printed (default: text)",
    )


def run(values: Mapping[str, Any]) -> int:
    from autoshard.layout.validate import read_plan

    show_plan(read_plan(values["plan"]), values["format"])
    return 0
