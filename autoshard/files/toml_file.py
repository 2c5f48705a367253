"""Read TOML that may hold anything: bounded in depth, so that parsing takes neither long nor much memory."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.text_file import MAX_DEPTH, is_too_deep

_PART = re.compile(r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?)[ \t]*(\.?)[ \t]*""")
"""Part of a key, bare or quoted, and the dot that another part follows. Text in several lines is read as keys, too."""


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text. where: what it is, in errors.

    Raises AutoshardError, one line that starts with where, for what is not TOML and nesting deeper than 100.
    """
    try:
        parser: Any = import_module("tomllib")
    except ImportError:  # Python 3.10
        parser = import_module("tomli")
    try:
        if _longest_key(text) > MAX_DEPTH:  # before parsing, the time of which grows with the square of a key's parts
            raise RecursionError
        found: dict[str, Any] = parser.loads(text)
        if is_too_deep(found):
            raise RecursionError
    except RecursionError:
        raise AutoshardError(f"{where}: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise AutoshardError(f"{where}: not TOML: {' '.join(str(error).split())[:200]}") from None
    return found


def _longest_key(text: str) -> int:
    """Number of parts of the longest dotted key in a TOML text."""
    longest = parts = 0
    end = -1
    for part in _PART.finditer(text):
        parts = parts + 1 if part.start() == end else 1
        longest = max(longest, parts)
        end = part.end() if part[1] else -1
    return longest
