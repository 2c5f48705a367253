"""Checks of one field of a file or an option.

Each raises AutoshardError with the field, its value, whose it is, and what would work.
"""

import difflib
import math
from collections.abc import Callable, Collection, Iterable
from numbers import Integral, Real
from typing import Any

from autoshard.errors import AutoshardError

LARGEST = 10**9
"""No size of a model or a batch comes near it; what is larger is a slip of the keyboard or an attack."""
LARGEST_SEED = 2**63 - 1
"""The largest seed that every generator of random numbers takes."""
LEAST_MEASURE, MOST_MEASURE = 1e-100, 1e100
"""No quantity of a machine may be smaller, but for 0, or larger: products and ratios of a few of them stay finite.
Numbers of options are no larger either."""
SHOWN_CHARACTERS = 60
_PLAIN = (int, str, tuple, bool, float, type(None))
"""Types of most fields, none of which another library's numbers have."""


def show(value: object) -> str:
    """The repr of a value, printable and short enough for one line of an error."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:
        return f"a number of more than {SHOWN_CHARACTERS} digits"  # repr of a huge int raises ValueError
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    text = " ".join(text.split()) if "\n" in text else text  # an array's has several lines
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def own_number(value: Any) -> Any:
    """The value; a number of another library, such as numpy's, as Python's own, which checks and JSON take alone."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def take_own_numbers(frozen: object) -> None:
    """Puts Python's own numbers in place of another library's in the fields of a frozen value, before it is checked."""
    for name, value in vars(frozen).items():
        if type(value) not in _PLAIN and isinstance(value, Real):
            object.__setattr__(frozen, name, own_number(value))


def check_format(file: str, version: object, *known: int) -> None:
    """Check that a file's format_version is one of those that are read; True and 1.0 are none.

    file: the file, in the AutoshardError raised.
    """
    if type(version) is not int or version not in known:
        reads = " and ".join(map(str, known))
        raise AutoshardError(f"{file} has format_version {show(version)}; this autoshard reads {reads}")


def is_count(value: object) -> bool:
    """Whether a number or a text, such as a key of JSON, is a whole number of at least 0 that int() takes: of a text of
    4,301 digits it makes none."""
    if isinstance(value, str):
        return len(value) < 10 and value.isdecimal()
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def check_integer(of: str, field: str, value: object, at_least: int = 1, at_most: int = LARGEST) -> None:
    """Check that a value is a whole number in [at_least, at_most]; True and 4096.0 are none.

    of: whose field it is, in the error, such as "model llama3-8b". field: its name. Raises AutoshardError.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        raise AutoshardError(
            f"{field}={show(value)} of {of} must be a whole number from {at_least:,} to {at_most:,}{_unquoted(value)}"
        )


def check_number(of: str, field: str, value: Any, fits: Callable[[float], bool], words: str) -> None:
    """Check that a value is a finite number that fits.

    of, field: whose it is and its name, in the AutoshardError raised. words: what it must be besides, such as ' above
    0'.
    """
    is_number = not isinstance(value, bool) and isinstance(value, (int, float)) and is_finite(value)
    if not is_number or not fits(value):
        raise AutoshardError(f"{field}={show(value)} of {of} must be a finite number{words}{_unquoted(value)}")


def check_positive(of: str, field: str, value: object) -> None:
    """Check that a value is a finite number above zero. Arguments are those of `check_number`."""
    check_number(of, field, value, lambda number: number > 0, " above 0")


def check_not_negative(of: str, field: str, value: object) -> None:
    """Check that a value is a finite number of at least zero. Arguments are those of `check_number`."""
    check_number(of, field, value, lambda number: number >= 0, " of at least 0")


def check_negative(of: str, field: str, value: object) -> None:
    """Check that a value is a finite number below zero. Arguments are those of `check_number`."""
    check_number(of, field, value, lambda number: number < 0, " below 0")


def check_measure(of: str, field: str, value: object, may_be_zero: bool = False) -> None:
    """Check that a value is a number from LEAST_MEASURE to MOST_MEASURE.

    of, field: whose it is and its name, in the AutoshardError raised. may_be_zero: 0 passes too.
    """
    (check_not_negative if may_be_zero else check_positive)(of, field, value)
    if isinstance(value, (int, float)) and value != 0 and not LEAST_MEASURE <= value <= MOST_MEASURE:
        zero = "0 or " if may_be_zero else ""
        raise AutoshardError(f"{field}={show(value)} of {of} must be {zero}from {LEAST_MEASURE:g} to {MOST_MEASURE:g}")


def _unquoted(value: object) -> str:
    return ", without quotes" if isinstance(value, str) else ""


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float; false for NaN, infinity and whole numbers too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_flag(of: str, field: str, value: object) -> None:
    """Check that a value is True or False. of, field: whose it is and its name, in the AutoshardError raised."""
    if not isinstance(value, bool):
        raise AutoshardError(f"{field}={show(value)} of {of} must be true or false")


def check_choice(of: str, field: str, value: object, choices: Iterable[str]) -> None:
    """Check that a value is one of `choices`. of, field: whose it is and its name, in the AutoshardError raised."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise AutoshardError(f"{field}={show(value)} of {of} must be one of: {', '.join(choices)}")


def near(text: str, names: Iterable[str]) -> list[str]:
    """Up to three of the names, to suggest: those that begin with the text, else those that are spelled much
    like it.
    """
    lower = {name.lower(): name for name in names}
    begin = [name for key, name in lower.items() if text and key.startswith(text.lower())]
    like = difflib.get_close_matches(text.lower(), lower, n=3, cutoff=0.5)
    return begin[:3] or [lower[key] for key in like]


def option_instead(name: object, options: Collection[str]) -> str:
    """The end of a sentence on a name that is no option: the options that are near, else all."""
    close = near(str(name), options)
    return f"; did you mean {' or '.join(close)}?" if close else f"; options: {', '.join(options)}"
