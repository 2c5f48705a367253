"""`autoshard audit`: prove a plan at full size without its cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, show_as
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text

SUMMARY = "prove a plan at full size without its cluster"
USAGE = "autoshard audit PLAN [--stages LIST] [--format text|json] [--no-cache]"
DESCRIPTION = """\
Build the program that the torch runtime would execute on every pipeline rank, at full size on fake tensors, run its
forward, backward and optimizer step through the schedule, and compare with the plan: parameters and state, FLOPs by
operator, every collective, order of actions, peak memory. Exit code 0 when all agree, 1 when something differs.
Stages with the same program, of which earlier ones hold more microbatches, are run once, and one that holds many with
six of them; with --stages each is run with all.

  autoshard audit plan.json
  autoshard audit plan.json --stages 0,7"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument("--stages", type=text, metavar="LIST", help="pipeline ranks, such as 0,7 (default: all)")
    add_format(parser, "text", "json")
    parser.add_argument("--no-cache", action="store_true", help="audit again what was audited before")


def run(values: Mapping[str, Any]) -> int:
    stages = _stages(values["stages"])
    found = autoshard.audit(load_plan(values["plan"]), stages=stages, use_cache=not values["no_cache"])
    show_as(values["format"], found.to_dict, found.page)
    return 0 if found.agrees else 1


def _stages(given: str | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", given):
        raise AutoshardError(f"--stages {given!r} is not a list of pipeline ranks such as 0,7")
    return tuple(map(int, given.split(",")))
