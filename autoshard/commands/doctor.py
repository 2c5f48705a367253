"""`autoshard doctor`: what this machine has, and what would stop a plan here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser, add_format
from autoshard.files.option_values import path

if TYPE_CHECKING:
    from autoshard.doctor.finding import Finding

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
    from autoshard.doctor.finding import STOPS
    from autoshard.doctor.findings import findings
    from autoshard.doctor.machine import look

    plan = load_plan(values["plan"]) if values["plan"] is not None else None
    checks = findings(look(), plan)
    stops = [one for one in checks if one.level == STOPS]
    if values["format"] == "json":
        say(json.dumps([asdict(one) for one in checks], indent=1))
    else:
        say(*page(checks))
        if plan is not None:
            where = f"{plan.model.name} on {plan.cluster.nodes} x {plan.cluster.instance}"
            verdict = f"{len(stops)} things stop" if len(stops) > 1 else "1 thing stops" if stops else "nothing stops"
            say("", f"{verdict} {where} on this machine")
    return 1 if stops else 0


def page(found: Sequence[Finding]) -> list[str]:
    """The lines of the page: for each finding a line such as 'stops    Neuron driver   none', with advice below it."""
    from autoshard.doctor.finding import OK

    width = max(len(one.what) for one in found)
    lines = []
    for finding in found:
        lines.append(
            f"{'' if finding.level == OK else finding.level:<8} {finding.what:<{width}}  {finding.found}".rstrip()
        )
        if finding.advice:
            lines.append(f"{'':<8} {'':<{width}}  {finding.advice}")
    return lines
