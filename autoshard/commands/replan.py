"""`autoshard replan`: a plan for the nodes that are left, near to the one that a run was under way with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.commands.output import say, show_plan
from autoshard.commands.parser import Parser, add_format, path, whole
from autoshard.commands.plan_options import MOST_NODES

SUMMARY = "plan again for another number of nodes, moving little"
USAGE = "autoshard replan PLAN --nodes N [options]"
DESCRIPTION = """\
Plan the same training for another number of nodes, after some were lost or came back. Of the layouts that are within
2 % of the fastest it takes the one that leaves most of the training state where it is. `run` then goes on from the
newest checkpoint of the old layout.

  autoshard replan plan.json --nodes 15 -o fewer.json
  autoshard run fewer.json --checkpoint-every 100"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json of the run")
    most = whole(at_most=MOST_NODES)
    parser.add_argument("--nodes", type=most, metavar="N", required=True, help="nodes that there are now")
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        help="where the new plan goes (default: PLAN with the nodes in its name)",
    )
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.layout.plan_json import write_plan
    from autoshard.layout.validate import read_plan
    from autoshard.replan import replan

    old, nodes = Path(values["plan"]), values["nodes"]
    out = values["out"] or str(old.with_name(f"{old.stem}-{nodes}-nodes{old.suffix}"))
    found = replan(read_plan(old), nodes)
    write_plan(found.plan, out)
    show_plan(found.plan, values["format"])
    if values["format"] == "text":
        say("", f"wrote {out}; next: autoshard run {out}, which goes on from the old layout's checkpoint")
    return 0
