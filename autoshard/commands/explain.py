"""`autoshard explain`: what a plan does, why it was chosen, what would change the choice, and why not another."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import autoshard
from autoshard.commands.output import load_plan, page_width, say, wants_color
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.explanation.renderers import RENDERERS, STANDARD
from autoshard.files.option_values import number, path, text
from autoshard.interface.limits import TIME_LIMIT_S
from autoshard.interface.parts import PARTS, glossary_page, page_pieces, parts_page, parts_to_dict, rendered_by
from autoshard.plugins.table import one_of_table

if TYPE_CHECKING:
    from autoshard.interface.planned import Plan

SUMMARY = "what a plan does, why it was chosen and what would change the choice"
USAGE = "autoshard explain PLAN [--why LAYOUT | --schedule --operators --measured FILE] [options]"
DESCRIPTION = """\
Print what a plan does, why it was chosen over others, and what would change the choice: the layouts are searched again
at other bandwidths, memories, peaks, batches, sequence lengths, nodes and prices. The page is printed first; these
answers follow as they are found, which takes some seconds, most for torch on many devices (--time-limit). Of many
layouts those that promise most are searched again, and the page says of how many.

  autoshard explain plan.json
  autoshard explain plan.json --why "tp=8 pp=16"
  autoshard explain plan.json --schedule --operators
  autoshard explain --glossary                       every term in a sentence
  autoshard explain plan.json --format json | jq .step_time_s"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, nargs="?", metavar="PLAN", help="plan.json")
    parser.add_argument("--glossary", action="store_true", help="only what the terms of plans and pages mean; no PLAN")
    parser.add_argument(
        "--why", type=text, metavar="LAYOUT", help="why not this layout, named in part: 'tp=8 pp=16'; term by term"
    )
    parser.add_argument("--schedule", action="store_true", help="only the schedule: pipeline ranks against time")
    parser.add_argument(
        "--operators", action="store_true", help="only one block: each operator's sharding, its collectives, seconds"
    )
    parser.add_argument(
        "--measured", type=path, metavar="FILE", help="only what a run measured (run.json) beside what was predicted"
    )
    parser.add_argument("--quick", action="store_true", help="leave out what would change the choice")
    parser.add_argument(
        "--time-limit",
        type=number,
        default=TIME_LIMIT_S,
        metavar="SECONDS",
        help=f"how long to look for what would change the choice (default: {TIME_LIMIT_S:g})",
    )
    parser.add_argument(
        "--format",
        type=one_of_table(RENDERERS, *STANDARD),
        metavar="|".join(STANDARD),
        default=STANDARD[0],
        help=f"what is printed (default: {STANDARD[0]}); or the name of a plug-in that renders plans",
    )


def run(values: Mapping[str, Any]) -> int:
    if values["glossary"]:
        for part in ("plan", "why", *PARTS):
            if values[part]:
                said = values[part] if part == "plan" else f"--{part}"
                raise AutoshardError(f"--glossary explains terms and prints nothing else; leave {said} out")
        sys.stdout.write(glossary_page(page_width(), wants_color()))
        return 0
    if values["plan"] is None:
        raise AutoshardError("PLAN is missing: autoshard explain plan.json, or autoshard explain --glossary")
    plan, form = load_plan(values["plan"]), values["format"]
    if form not in STANDARD:
        for part in ("why", *PARTS):
            if values[part]:
                raise AutoshardError(f"--format {form} shows whole plans; --{part} takes {', '.join(STANDARD)}")
        _write(rendered_by(plan, form), form)
        return 0
    if values["why"]:
        for part in PARTS:
            if values[part]:
                raise AutoshardError(f"--why has a page of its own; ask for --{part} by itself")
        _show_why(plan, values["why"], form)
    elif parts := [name for name in PARTS if values[name]]:
        _show_parts(plan, parts, values["measured"], form)
    elif form == "text":
        limit_s, width = values["time_limit"], page_width()
        for piece in page_pieces(plan, quick=values["quick"], time_limit=limit_s, width=width, color=wants_color()):
            sys.stdout.write(piece)
            sys.stdout.flush()
    else:
        found = autoshard.explain(plan, quick=values["quick"], time_limit=values["time_limit"])
        sys.stdout.write(found.markdown() if form == "markdown" else json.dumps(found.to_dict(), indent=1) + "\n")
    return 0


def _show_why(plan: Plan, asked: str, form: str) -> None:
    answer = autoshard.why_not(plan, asked)
    if form == "json":
        say(json.dumps(answer.to_dict(), indent=1))
    else:
        _write(answer.page(page_width(), form == "text" and wants_color()), form)


def _show_parts(plan: Plan, parts: Sequence[str], measured: str | None, form: str) -> None:
    if form == "json":
        say(json.dumps(parts_to_dict(plan, parts, measured), indent=1))
    else:
        _write(parts_page(plan, parts, measured, page_width(), form == "text" and wants_color()), form)


def _write(page: str, form: str) -> None:
    """Prints a page in the given form; in Markdown it is put in a code block, because its columns matter."""
    sys.stdout.write(f"```text\n{page}```\n" if form == "markdown" else page)
