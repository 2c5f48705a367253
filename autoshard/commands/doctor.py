"""`autoshard doctor`: what this machine has, and what would stop a plan here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser, add_format
from autoshard.files.option_values import path

SUMMARY = "what this machine has, and what would stop a plan here"
USAGE = "autoshard doctor [PLAN] [--format text|json]"
DESCRIPTION = """\
Look at this machine: Neuron driver and devices, LNC, EFA, torch and NxD, disk, shared folder. With a plan it says what
would stop it here; exit code 1 when something does.

  autoshard doctor
  autoshard doctor plan.json
  srun --ntasks-per-node=1 autoshard doctor plan.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, nargs="?", metavar="PLAN", help="plan.json")
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.check_machine(None if values["plan"] is None else load_plan(values["plan"]))
    if values["format"] == "json":
        say(json.dumps(found.to_list(), indent=1))
    else:
        sys.stdout.write(found.page())
    return 1 if found.stops else 0
