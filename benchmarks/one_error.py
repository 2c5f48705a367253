"""A user's mistake as one line on stderr, for benchmarks that read files, as the commands say it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import getfile
from pathlib import Path

from autoshard.cli import USER_ERROR
from autoshard.errors import AutoshardError


def one_error(main: Callable[[Sequence[str] | None], int]) -> Callable[[Sequence[str] | None], int]:
    """The same main function, with an AutoshardError as one line behind the name of its file and the commands' exit
    code."""

    @wraps(main)
    def reports(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except AutoshardError as error:
            print(f"{Path(getfile(main)).stem}: error: {error}", file=sys.stderr)
            return USER_ERROR

    return reports
