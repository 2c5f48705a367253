"""`autoshard validate`: checks that a plan is whole and agrees with itself and with the rules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.files.option_values import path

SUMMARY = "check that a plan is whole and agrees with itself"
USAGE = "autoshard validate PLAN"
DESCRIPTION = """\
Check a plan: format, rules of the backend, that everything in it follows from its inputs and its strategy, that nobody
changed it, and, of a plan for nxd, that NxD has a layer for each operator as it is sharded. What the backend does about
what NxD gets wrong is said, and whether the plan has the prices of another version. Exit code 0 when the plan is right,
2 and one error when it is not.

  autoshard validate plan.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.validate(values["plan"])
    sys.stderr.write("".join(f"note: {note}\n" for note in found.notes))
    first, rest = found.executed[:1], found.executed[1:]
    say(f"{values['plan']} is valid: {found.plan.title}, {found.plan.short_layout}", *first)
    say(*(f"  {sentence}" for sentence in rest))
    return 0
