"""One step of a pipeline rank: forward or backward, or half a backward, of one microbatch through one of its chunks."""

import re
from typing import NamedTuple

from autoshard.errors import AutoshardError

_TEXT = re.compile(r"([FBIW])(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")


class Action(NamedTuple):
    """`F3.1` in text: forward of microbatch 3 through chunk 1 of the rank that runs it; `B3.1` its backward.

    A backward may come in two parts: `I3.1` is all of it but the gradients of matrix products' weights, which `W3.1`
    adds at any time after.

    On pipeline rank r of pp, chunk c is virtual stage c * pp + r.
    """

    kind: str
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        """The text form, which `parse` reads."""
        return f"{self.kind}{self.microbatch}.{self.chunk}"

    @staticmethod
    def parse(text: str) -> "Action":
        """From the text form. Errors: anything else."""
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise AutoshardError(f"action {str(text)[:60]!r} is none; one reads F3.1, B3.1, I3.1 or W3.1")
        return Action(match[1], int(match[2]), int(match[3]))


Order = tuple[Action, ...]
"""What one pipeline rank does, in order."""
