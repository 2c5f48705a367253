"""Option values, from the command line (text) or a recipe (YAML), as checked values.

Each function takes what was given and returns the value, or raises an error whose text says what would work: argparse
and jsonargparse put the name of the option in front of it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from autoshard.files.fields import MOST_MEASURE


class WrongValueError(argparse.ArgumentTypeError, ValueError):
    """An option has a value that it cannot take. argparse and jsonargparse each show the text of one of the
    two bases.
    """


_LARGEST = 10**15 - 1
"""The largest whole number that is taken where an option has no limit of its own: floats hold it exactly."""


def whole(at_least: int = 1, at_most: int | None = None) -> Callable[[Any], int]:
    """A parser for a whole number in [at_least, at_most]. at_most: None allows up to 15 digits.

    The parser takes a text from the command line or a number from a config file; it raises WrongValueError.
    """

    most = _LARGEST if at_most is None else at_most

    def parse(value: Any) -> int:
        text = str(value)
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", text) or float(text) < at_least:
            raise WrongValueError(f"{shortened(text)} must be a whole number of at least {at_least}")
        if float(text) > most:  # int refuses thousands of digits
            raise WrongValueError(f"{shortened(text)} must be at most {most:,}")
        return int(text)

    return parse


def whole_or(word: str) -> Callable[[Any], int | str]:
    """A parser for a whole number of at least 1, or for this one word. The parser raises WrongValueError."""
    parse = whole()

    def parse_either(value: Any) -> int | str:
        return word if value == word else parse(value)

    return parse_either


def number(value: Any) -> float:
    """The value as a number above zero, at most MOST_MEASURE. Raises WrongValueError."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    except OverflowError:  # a whole number that no float holds
        found = sys.float_info.max
    if isinstance(value, bool) or not found > 0 or math.isinf(found):
        raise WrongValueError(f"{shortened(str(value))} must be a number above 0")
    if found > MOST_MEASURE:
        raise WrongValueError(f"{shortened(str(value))} must be at most {MOST_MEASURE:g}")
    return found


def share(value: Any) -> float:
    """The value as a number between 0 and 1, both excluded. Raises WrongValueError."""
    try:
        found = number(value)
    except WrongValueError:
        found = math.nan
    if not found < 1:
        raise WrongValueError(f"{shortened(str(value))} must be a number between 0 and 1")
    return found


class one_of:  # noqa: N801 - reads as a function, and completion asks what it knows
    """A parser for one of a few words. `known` holds these words: shell completion reads it."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def __call__(self, value: Any) -> str:
        if value not in self.known:
            raise WrongValueError(f"{shortened(str(value))} must be one of: {', '.join(self.known)}")
        return str(value)


def text(value: Any) -> str:
    """The value as a text that is not empty, such as a name. Raises WrongValueError."""
    if value == "":
        raise WrongValueError("it is empty; give a text")
    if not isinstance(value, (str, int, float)) or "\0" in str(value):
        raise WrongValueError(f"{shortened(repr(value))} must be a text")
    return str(value)


def path(value: Any) -> str:
    """The value as the path of a file or folder, which shell completion offers for it and not for `text`.

    Raises WrongValueError for what is no text or empty, and for "-", the standard input or output of other tools.
    """
    if value == "-":
        raise WrongValueError("- stands for no file: standard input and output are not taken; ./- is a file called -")
    return text(value)


def shortened(value: str) -> str:
    """The text, printable and short enough for one line of an error."""
    printable = value if value.isprintable() else ascii(value)
    return printable if len(printable) <= 60 else f"{printable[:60]}..."
