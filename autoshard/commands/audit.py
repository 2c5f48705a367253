"""`autoshard audit`: prove a plan at full size without its cluster."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import load_plan, page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text

if TYPE_CHECKING:
    from autoshard.audits.values import RoleAudit
    from autoshard.plans.plan import Plan

SUMMARY = "prove a plan at full size without its cluster"
USAGE = "autoshard audit PLAN [--stages LIST] [--format text|json] [--no-cache]"
DESCRIPTION = """\
Build the program that the torch runtime would execute on every pipeline rank, at full size on fake tensors, run its
forward, backward and optimizer step through the schedule, and compare with the plan: parameters and state, FLOPs by
operator, every collective, order of actions, peak memory. Exit code 0 when all agree, 1 when something differs.

  autoshard audit plan.json
  autoshard audit plan.json --stages 0,7"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument("--stages", type=text, metavar="LIST", help="pipeline ranks, such as 0,7 (default: all)")
    add_format(parser, "text", "json")
    parser.add_argument("--no-cache", action="store_true", help="audit again what was audited before")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.audits.report import render, to_dict
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import ANYWHERE

    plan = load_plan(values["plan"])
    check_runs(ANYWHERE, plan.training.precision)
    audits = _audits(plan, _stages(values["stages"]), use_cache=not values["no_cache"])
    if values["format"] == "json":
        say(json.dumps(to_dict(plan, audits), indent=1))
    else:
        sys.stdout.write(render(plan, audits, page_width(), wants_color()))
    return 0 if all(one.agrees for one in audits) else 1


def _audits(plan: Plan, stages: tuple[int, ...] | None, use_cache: bool) -> tuple[RoleAudit, ...]:
    from autoshard.audits.cache import cache_file, load, save
    from autoshard.audits.progress import RoleProgress
    from autoshard.audits.roles import roles
    from autoshard.audits.run import audit

    wanted, file = roles(plan, stages), cache_file(plan)
    by_rank = load(file) if use_cache else {}
    missing = sorted({role.pipeline_rank for role in wanted if role.rank not in by_rank})
    if missing:
        with RoleProgress(sys.stderr) as progress:
            by_rank |= {one.role.rank: one for one in audit(plan, tuple(missing), progress.update)}
        save(file, by_rank)
    return tuple(by_rank[role.rank] for role in wanted)


def _stages(given: str | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", given):
        raise AutoshardError(f"--stages {given!r} is not a list of pipeline ranks such as 0,7")
    return tuple(map(int, given.split(",")))
