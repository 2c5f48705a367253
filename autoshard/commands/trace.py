"""`autoshard trace`: writes a plan's step as a timeline for Perfetto, with a measured run beside it if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.files.option_values import path

SUMMARY = "a plan's step as a timeline for Perfetto"
USAGE = "autoshard trace PLAN [-o FILE] [--measured FILE]"
DESCRIPTION = """\
Write the predicted timeline of one step, all pipeline ranks: compute, exposed communication, bubble and a counter of
memory, in Chrome's trace format for https://ui.perfetto.dev. With --measured what a profiled run did is beside it.

  autoshard trace plan.json -o trace.json
  autoshard trace runs/RUN/plan.json --measured runs/RUN/run.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        default="predicted_trace.json",
        help="where the timeline goes (default: predicted_trace.json)",
    )
    parser.add_argument(
        "--measured",
        type=path,
        metavar="FILE",
        help="run.json or trace.json of a run of this plan with --profile",
    )


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.trace(load_plan(values["plan"]), values["out"], measured=values["measured"])
    say(f"wrote {values['out']}: {len(found['traceEvents']):,} events for https://ui.perfetto.dev")
    return 0
