"""`autoshard --print-completion SHELL`: a completion script for the shell, made by shtab."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

import autoshard
from autoshard.commands.parser import parsers
from autoshard.files.option_values import one_of, path

SHELLS = ("bash", "zsh", "tcsh")


class PrintCompletion(argparse.Action):
    """Prints the script and exits, as --version does."""

    def __init__(self, option_strings: list[str], dest: str, build: Callable[[], argparse.ArgumentParser]) -> None:
        text = f"print a completion script: {', '.join(SHELLS)}"
        super().__init__(
            option_strings, argparse.SUPPRESS, choices=SHELLS, default=argparse.SUPPRESS, metavar="SHELL", help=text
        )
        self._build = build

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        sys.stdout.write(completion(self._build(), str(args[1])))
        parser.exit()


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of the parser for one shell ('bash', 'zsh', 'tcsh'). Models, instances, choices and paths
    are completed too."""
    import shtab

    for subparser in parsers(parser):
        for action in subparser._actions:
            if isinstance(action.type, one_of):
                action.choices = action.type.known
            elif action.dest == "model":
                action.choices = autoshard.builtin_models()
            elif action.dest == "instance":
                action.choices = autoshard.instances()
            elif action.type is path or action.dest == "config":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)
