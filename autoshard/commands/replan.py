"""`autoshard replan`: makes a new plan from a plan: for other nodes, or with fields that the user changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import autoshard
from autoshard.commands.output import load_plan, next_command, page_width, say, show_plan, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, whole
from autoshard.planner.options import MOST_NODES

if TYPE_CHECKING:
    from autoshard.interface.editing import EditedPlan

REWRITES = ("plan",)
SUMMARY = "plan again for another number of nodes, moving little; or edit a plan"
USAGE = "autoshard replan PLAN [--nodes N | --edit FIELD=VALUE ...] [options]"
DESCRIPTION = """\
Plan the same training for another number of nodes, after some were lost or came back. Of the layouts that are within
2 % of the one that `plan` takes, it takes the one that leaves most of the training state where it is. `run` then goes
on from the newest checkpoint of the old layout.

  autoshard replan plan.json --nodes 15 -o fewer.json
  autoshard run fewer.json --checkpoint-every 100

Or change fields of a plan. The layout is kept but for the changes, checked against all rules and priced; what changed
is printed. Without --edit, a file that was changed by hand, or that another version wrote, is made a whole plan again.

  autoshard replan plan.json --edit strategy.microbatch_size=2 -o new.json
  autoshard replan changed.json -o new.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json of the run")
    parser.add_argument(
        "--nodes", type=whole(at_most=MOST_NODES), metavar="N", default=None, help="nodes that there are now"
    )
    parser.add_argument(
        "--edit",
        metavar="FIELD=VALUE",
        action="append",
        default=None,
        help="set a field of inputs, backend or strategy, such as strategy.microbatch_size=2; may be given repeatedly",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        help="where the new plan goes (default: PLAN with the nodes, or 'edited', in its name)",
    )
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    old, nodes, edits = Path(values["plan"]), values["nodes"], values["edit"]
    if nodes is not None and edits:
        raise AutoshardError(f"--nodes {nodes} with --edit: one plans another layout, the other keeps it; use one")
    suffix = "edited" if nodes is None else f"{nodes}-nodes"
    out = values["out"] or str(old.with_name(f"{old.stem}-{suffix}{old.suffix}"))
    if nodes is None:
        changed = autoshard.edit_plan(load_plan(values["plan"]) if edits else values["plan"], edits or ())
        changed.plan.save(out)
        _show_changes(changed, values["plan"], out, values["format"])
        return 0
    replanned = autoshard.replan(load_plan(values["plan"]), nodes)
    replanned.save(out)
    show_plan(replanned, values["format"])
    if values["format"] == "text":
        goes_on = next_command("run", out, "--resume", "auto")
        say("", f"wrote {out}; {goes_on}, which goes on from the old layout's checkpoint")
    return 0


def _show_changes(changed: EditedPlan, old: str, out: str, form: str) -> None:
    if form == "json":
        say(json.dumps(changed.to_dict(), indent=1))
        return
    if changed.found.by_hand:
        by_hand = changed.found.by_hand
        say(f"{old} was changed by hand: {by_hand}", "Its inputs and strategy are taken as they stand there.", "")
    sys.stdout.write(changed.page(page_width(), wants_color()))
    say("", *(f"note: {note}" for note in changed.plan.notes[1:]), f"wrote {out}; {next_command('explain', out)}")
