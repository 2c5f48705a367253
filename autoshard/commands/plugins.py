"""`autoshard plugins`: what other packages add, and what of it fails to load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import say
from autoshard.commands.parser import Parser, add_format

SUMMARY = "what installed plug-ins add, and which fail to load"
USAGE = "autoshard plugins [--format text|json]"
DESCRIPTION = """\
List the plug-ins that are installed beside autoshard: families of models, hardware files, schedules, searchers, cost
models, renderers and predictors. Each is loaded, and what fails is said in words; the exit code is 1 where one does.

  autoshard plugins"""


def add_arguments(parser: Parser) -> None:
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.installed_plugins()
    if values["format"] == "json":
        say(json.dumps([one._asdict() for one in found], indent=1))
    elif not found:
        say("no plug-ins are installed; CONTRIBUTING.md shows how one is made")
    else:
        width = max(len(one.name) for one in found)
        for group in dict.fromkeys(one.group for one in found):
            say(f"autoshard.{group}")
            for one in found:
                if one.group == group:
                    say(f"  {one.name:{width}}  {one.package}, {one.target}: {one.problem or 'loads'}")
    return int(any(one.problem for one in found))
