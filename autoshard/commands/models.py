"""`autoshard models`: the models that can be named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import show_as
from autoshard.commands.parser import Parser, add_format

SUMMARY = "the models that can be named, with their sizes"
USAGE = "autoshard models [WORD ...] [--format text|json]"
DESCRIPTION = """\
List the built-in models, and those of installed plug-ins: parameters, those of them that a token meets, positions, and
what their blocks are.

  autoshard models
  autoshard models qwen3 experts        those with both words in name, family, blocks or repositories"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="list those alone that have all of these words")
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.list_models(" ".join(values["words"]))
    show_as(values["format"], found.to_list, found.page)
    return 0
