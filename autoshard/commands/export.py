"""`autoshard export`: writes a plan as the configuration of another framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.files.option_values import one_of, path
from autoshard.interop.export import FORMS

SUMMARY = "write a plan as another framework's configuration"
USAGE = "autoshard export PLAN --to nxdt|torchtitan|torchtitan-toml|megatron [--out FILE]"
DESCRIPTION = """\
Write a plan as a configuration of NxD Training (YAML), of torchtitan (a Python registry; TOML for releases until
0.2.2) or as arguments of Megatron-LM. What their words cannot say is listed on stderr, not dropped.

  autoshard export plan.json --to nxdt --out conf/llama3_70b.yaml
  autoshard export plan.json --to megatron"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument("--to", type=one_of(*FORMS), metavar="FORM", required=True, help=", ".join(FORMS))
    parser.add_argument("-o", "--out", type=path, metavar="FILE", help="where it goes (default: stdout)")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.files.atomic_file import write_text

    exported = autoshard.export(load_plan(values["plan"]), values["to"])
    if values["out"] is None:
        sys.stdout.write(exported.text)
    else:
        write_text(values["out"], exported.text, FORMS[values["to"]])
        say(f"wrote {values['out']}")
    for sentence in exported.left_out:
        sys.stderr.write(f"not carried over: {sentence}\n")
    return 0
