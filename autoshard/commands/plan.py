"""`autoshard plan`: search the best layout, print it with its reasons, write plan.json."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import command, next_command, page_width, say, show_as, show_plan, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, whole
from autoshard.planner.options import PINS, WHAT, Option
from autoshard.planner.request import TOP

SUMMARY = "search the fastest layout that fits and write plan.json"
USAGE = "autoshard plan --model MODEL [options]"
DESCRIPTION = """\
Search the fastest layout of a model on a cluster that fits into memory, and write it down with its reasons.

  autoshard plan --model llama3-70b --nodes 16
  autoshard plan --model ./config.json --instance trn2.48xlarge --nodes 4 --tp 16 --recompute full
  autoshard plan --config recipes/llama3_70b_trn1_16nodes.yaml --out published.json"""

PLAN = "plan.json"
OF_A_PLAN = ("out", "top", "verbose", "exhaustive")
"""Options that a list of steps has no use for."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        action="config",
        metavar="FILE",
        help="recipe (YAML): these options, with underscores; those of the command line overrule it",
    )
    _add(parser.add_argument_group("what to train, on what"), WHAT)
    pins = parser.add_argument_group("pins", "Fix a choice; what is not pinned is searched.")
    _add(pins, PINS)
    parser.add_argument(
        "--exhaustive",
        action="store_true",
        help="price every layout, also those that a bound says cannot win: slower, and the same answer; "
        "with --operators solver every block that may win is solved",
    )
    parser.add_argument(
        "--beaten-path",
        action="store_true",
        help="choose only features that are known to have run on these devices with this backend: degrees, virtual "
        "stages, microbatches, recompute sets and sizes of graphs of published runs",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--pareto",
        action="store_true",
        help="list the fastest step of 1, 2, 4, ... up to --nodes nodes; no plan is written",
    )
    output.add_argument("--top", type=whole(0), metavar="K", help=f"runners-up to keep (default: {TOP})")
    output.add_argument("-o", "--out", type=path, metavar="FILE", help=f"where the plan goes (default: {PLAN})")
    output.add_argument("--verbose", action="store_true", help="print the whole page, as `autoshard explain` does")
    add_format(output, "text", "json")


def _add(group: Any, options: tuple[Option, ...]) -> None:
    for option in options:
        group.add_argument(
            option.flag, type=option.parse, metavar=option.metavar, default=option.default, help=option.help
        )


def run(values: Mapping[str, Any]) -> int:
    if values["model"] is None:
        count = len(autoshard.builtin_models())
        raise AutoshardError(
            f"--model is missing: a built-in one, such as llama3-8b (autoshard models lists all {count}), a path to a "
            "Hugging Face config.json, or my_file.py:MyModel"
        )
    asked = {option.name: values[option.name] for option in (*WHAT, *PINS)}
    if values["pareto"]:
        for name in OF_A_PLAN:
            if values[name]:
                raise AutoshardError(f"--pareto lists steps and writes no plan; leave --{name} out")
        frontier = autoshard.frontier(**asked, beaten_path=values["beaten_path"])
        show_as(values["format"], frontier.to_list, frontier.page)
        return 0
    top, out = TOP if values["top"] is None else values["top"], values["out"] or PLAN
    plan = autoshard.plan(**asked, top=top, exhaustive=values["exhaustive"], beaten_path=values["beaten_path"])
    plan.save(out)
    if values["format"] == "text" and not values["verbose"]:
        sys.stdout.write(plan.summary(page_width(), wants_color()))
    else:
        show_plan(plan, values["format"])
    if values["format"] == "text":
        from autoshard.interface.checking import is_price

        then = "it is a price, which nothing here runs" if is_price(plan) else next_command("run", out)
        say("", f"wrote {out}; {then}")
        if not values["verbose"]:
            say(f"why, and what else: {command('explain', out)}")
            say("the terms in plain words: autoshard explain --glossary")
    return 0
