"""`autoshard compare`: two plans side by side, differences first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, say, show_as
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path

OUT = "compare.html"
SUMMARY = "two plans side by side, differences first"
USAGE = "autoshard compare PLAN PLAN [--format text|json | --html [-o FILE]]"
DESCRIPTION = """\
Print two plans side by side: what differs, then every term of time and memory with its difference, then what is alike.

  autoshard compare plan.json other.json
  autoshard compare plan.json other.json --html -o compare.html"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("one", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument("other", type=path, nargs="?", metavar="PLAN", help="another plan.json")
    parser.add_argument("--html", action="store_true", help="write a page with the pictures of both; no text is shown")
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        help=f"where the page goes, with --html (default: {OUT})",
    )
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    if values["other"] is None:
        raise AutoshardError(f"compare takes two plans, not one: autoshard compare {values['one']} other.json")
    if values["out"] is not None and not values["html"]:
        raise AutoshardError(f"-o {values['out']} is where a page goes; add --html")
    if values["html"] and values["format"] != "text":
        raise AutoshardError(f"--html writes a page and --format {values['format']} prints; leave one out")
    names, out = (values["one"], values["other"]), values["out"] or OUT
    found = autoshard.compare(*map(load_plan, names), names=names)
    if values["html"]:
        found.save_html(out)
        say(f"wrote {out}; open it in a browser")
    else:
        show_as(values["format"], found.to_dict, found.page)
    return 0
