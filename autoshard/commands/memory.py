"""`autoshard memory`: what a rank allocates over a step, and a dump of a real run against it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, show_as
from autoshard.commands.parser import Parser, add_format
from autoshard.files.option_values import path, whole

SUMMARY = "what a rank allocates over a step, and a real dump against it"
USAGE = "autoshard memory PLAN [--rank R] [-o FILE] [--snapshot FILE] [--format text|json]"
DESCRIPTION = """\
Run the program of one rank at full size on fake tensors, and list its memory over one step: every block with its
tensor, operator, stage and microbatch. Given the dump of a real run (torch.cuda.memory._dump_snapshot), say which
planned blocks it has, which were never planned, and which single change of the plan would have fitted. A dump is read
as data; nothing in it is executed.

  autoshard memory plan.json
  autoshard memory plan.json --rank 3 -o memory.pickle      for https://pytorch.org/memory_viz
  autoshard memory plan.json --snapshot dump.pickle"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--rank", type=whole(0), metavar="R", help="which rank (default: the first of the fullest pipeline rank)"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        help="also write the step: .pickle for PyTorch's memory visualiser, .json for https://ui.perfetto.dev, .png or "
        ".svg as a picture",
    )
    parser.add_argument("--snapshot", type=path, metavar="FILE", help="dump of a run of this plan on that rank")
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.interface.holding import check_form

    if values["out"] is not None:
        check_form(values["out"])
    planned = autoshard.memory(load_plan(values["plan"]), rank=values["rank"])
    found = planned if values["snapshot"] is None else planned.diagnose(values["snapshot"])
    show_as(values["format"], found.to_dict, found.page)
    if values["out"] is not None:
        planned.save(values["out"])
        sys.stderr.write(f"wrote {values['out']}\n")
    return 0
