"""`autoshard instances`: the instances that can be named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import show_as
from autoshard.commands.parser import Parser, add_format

SUMMARY = "the instances that can be named, with their devices"
USAGE = "autoshard instances [WORD ...] [--format text|json]"
DESCRIPTION = """\
List the instances with a packaged hardware file, and those of installed plug-ins: devices of a node, their memory and
peak, the network and the price of a node.

  autoshard instances
  autoshard instances trn2              those with this word in their names"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="list those alone that have all of these words")
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.list_instances(" ".join(values["words"]))
    show_as(values["format"], found.to_list, found.page)
    return 0
