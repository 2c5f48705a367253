"""`autoshard validate`: whether a plan is whole and agrees with itself and with the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.commands.output import say
from autoshard.commands.parser import Parser, path

SUMMARY = "check that a plan is whole and agrees with itself"
USAGE = "autoshard validate PLAN"
DESCRIPTION = """\
Check a plan: format, rules of the backend, and that everything in it follows from its inputs and its strategy.
Exit code 0 and one line when it is right, 2 and one error when it is not.

  autoshard validate plan.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.explain.describe import layout_name
    from autoshard.layout.validate import read_plan

    plan = read_plan(values["plan"])
    where = f"{plan.model.name} on {plan.cluster.nodes} x {plan.cluster.instance}"
    say(f"{values['plan']} is valid: {where}, {layout_name(plan.strategy)}")
    return 0
