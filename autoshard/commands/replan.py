"""`autoshard replan`: makes a new plan from a plan: for other nodes, or with fields that the user changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import autoshard
from autoshard.commands.output import load_plan, page_width, say, show_plan, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, whole
from autoshard.planner.options import MOST_NODES

if TYPE_CHECKING:
    from autoshard.cost.values import Estimate
    from autoshard.replanning.edit import Edited

SUMMARY = "plan again for another number of nodes, moving little; or edit a plan"
USAGE = "autoshard replan PLAN [--nodes N | --edit FIELD=VALUE ...] [options]"
DESCRIPTION = """\
Plan the same training for another number of nodes, after some were lost or came back. Of the layouts that are within
2 % of the fastest it takes the one that leaves most of the training state where it is. `run` then goes on from the
newest checkpoint of the old layout.

  autoshard replan plan.json --nodes 15 -o fewer.json
  autoshard run fewer.json --checkpoint-every 100

Or change fields of a plan. The layout is kept but for the changes, checked against all rules and priced; what changed
is printed. Without --edit, a file that was changed by hand, or that another version wrote, is made a whole plan again.

  autoshard replan plan.json --edit strategy.microbatch_size=2 -o new.json
  autoshard replan changed.json -o new.json"""
MOST_SHOWN = 20
"""How many changed fields a page lists."""


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
    from autoshard.plans.plan_json import write_plan

    old, nodes, edits = Path(values["plan"]), values["nodes"], values["edit"]
    if nodes is not None and edits:
        raise AutoshardError(f"--nodes {nodes} with --edit: one plans another layout, the other keeps it; use one")
    suffix = "edited" if nodes is None else f"{nodes}-nodes"
    out = values["out"] or str(old.with_name(f"{old.stem}-{suffix}{old.suffix}"))
    if nodes is None:
        from autoshard.replanning.edit import edited, made_anew

        changed = edited(load_plan(values["plan"]), edits) if edits else made_anew(values["plan"])
        write_plan(changed.plan, out)
        _show_changes(changed, values["plan"], out, values["format"])
        return 0
    replanned = autoshard.replan(load_plan(values["plan"]), nodes)
    replanned.save(out)
    show_plan(replanned, values["format"])
    if values["format"] == "text":
        say("", f"wrote {out}; next: autoshard run {out}, which goes on from the old layout's checkpoint")
    return 0


def _show_changes(found: Edited, old: str, out: str, form: str) -> None:
    from autoshard.explanation.page import paint, table, wrapped
    from autoshard.files.codec import to_json
    from autoshard.replanning.edit import shown

    if form == "json":
        before = None if found.before is None else to_json(found.before)
        changes = [change._asdict() for change in found.changes]
        values = {"changes": changes, "before": before, "after": to_json(found.plan.estimate)}
        say(json.dumps({**values, "by_hand": found.by_hand or None, "notes": list(found.plan.notes)}, indent=1))
        return
    width = page_width()
    if found.by_hand:
        say(f"{old} was changed by hand: {found.by_hand}", "Its inputs and strategy are taken as they stand there.", "")
    rows = [(one.field, shown(one.before), shown(one.after)) for one in found.changes[:MOST_SHOWN]]
    if len(found.changes) > MOST_SHOWN:
        rows.append((f"{len(found.changes) - MOST_SHOWN:,} more", "", ""))
    lines = table(("field", "before", "after"), rows, width, ()) if rows else wrapped("no field changed", width, "  ")
    lines += [((" ", ""),), *table(("", "before", "after"), _prices(found), width, ())]
    sys.stdout.write(paint(lines, width, wants_color()))
    say("", *(f"note: {note}" for note in found.plan.notes[1:]), f"wrote {out}; next: autoshard explain {out}")


def _prices(found: Edited) -> list[tuple[str, str, str]]:
    from autoshard.explanation.page import more, percent
    from autoshard.units import format_bytes, format_seconds

    before, after = found.before, found.plan.estimate

    def row(name: str, one: Any, tail: str = "") -> tuple[str, str, str]:
        return name, "not said" if before is None else one(before), one(after) + tail

    def step(one: Estimate) -> str:
        return f"~{format_seconds(one.step_time_s)}"

    def memory(one: Estimate) -> str:
        return f"~{format_bytes(one.fullest.total_bytes)} of {format_bytes(one.memory_capacity_bytes)}"

    share = "" if before is None else f" ({more(after.step_time_s / before.step_time_s - 1)})"
    return [
        row("step time", step, share),
        row("memory", memory),
        row("probability to fit", lambda one: percent(one.fits_probability)),
    ]
