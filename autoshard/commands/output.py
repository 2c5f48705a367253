"""How commands print: the width and colour of the terminal, plain text for pipes and NO_COLOR."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoshard.interface.planned import Plan

PIPE_WIDTH = 100


def wants_color() -> bool:
    """Whether to print in colour: on a terminal, unless NO_COLOR (https://no-color.org) is set or TERM is dumb;
    FORCE_COLOR turns colour on for pipes too."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def page_width() -> int:
    """The width of a page in columns: that of the terminal (or COLUMNS), 100 for a pipe."""
    return shutil.get_terminal_size((PIPE_WIDTH, 0)).columns


def say(*lines: str) -> None:
    """Prints each line to stdout, with a newline after it."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def show_as(form: str, content: Callable[[], object], page: Callable[[int, bool], str]) -> None:
    """Prints what a command found. form: 'text' or 'json'. content: gives what JSON says. page: gives the text, of a
    width in columns and in colour or not."""
    if form == "json":
        say(json.dumps(content(), indent=1))
    else:
        sys.stdout.write(page(page_width(), wants_color()))


def next_command(*words: str) -> str:
    """'next: autoshard run plan.json': a command for a shell, its paths quoted. words: what stands behind autoshard."""
    return f"next: {command(*words)}"


def command(*words: str) -> str:
    """A command of autoshard for a shell. words: what stands behind autoshard."""
    return shlex.join(("autoshard", *words))


def load_plan(file: str) -> Plan:
    """The plan in a file; warnings about it go to stderr. Raises AutoshardError as read_plan does."""
    from autoshard.interface.reading import read_plan_with_notes

    plan, notes = read_plan_with_notes(file)
    sys.stderr.write("".join(f"note: {note}\n" for note in notes))
    return plan


def show_plan(plan: Plan, form: str) -> None:
    """Prints the explanation of a plan. form: 'text' or 'json'."""
    show_as(form, lambda: plan.describe().to_dict(), plan.page)
