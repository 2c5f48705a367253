"""Mistakes of the user's. Everything else that goes wrong is a bug and keeps its traceback."""

import sys


class AutoshardError(Exception):
    """One line: which field, its value, the other side's value, what would work. The command line then exits with 2."""


class NoLayoutFits(AutoshardError):
    """Every layout was dropped; the text names the nearest miss and what would fit."""


class NoneFound(AutoshardError):
    """A search that looks at some layouts saw none that fits, though others do."""


def say_error(message: object, before: str = "") -> None:
    """The message as one line of stderr, with whole lines before it, all in one write: ranks share a stream, and what
    print() writes of an unbuffered one (PYTHONUNBUFFERED=1, as containers set it) lets another rank in between the text
    and its end of line."""
    sys.stderr.write(f"{before}autoshard: error: {message}\n")
    sys.stderr.flush()
