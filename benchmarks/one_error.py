"""A user's mistake as one line on stderr, for benchmarks that read files, as the commands say it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import getfile
from pathlib import Path
from typing import ParamSpec

from autoshard.cli import USER_ERROR
from autoshard.errors import AutoshardError

P = ParamSpec("P")


def one_error(main: Callable[P, int]) -> Callable[P, int]:
    """The same main function, with an AutoshardError as one line behind the name of its file and the commands' exit
    code."""

    @wraps(main)
    def reports(*arguments: P.args, **options: P.kwargs) -> int:
        try:
            return main(*arguments, **options)
        except AutoshardError as error:
            print(f"{Path(getfile(main)).stem}: error: {error}", file=sys.stderr)
            return USER_ERROR

    return reports
