"""One action of a pipeline rank: a forward, a backward or half a backward of one microbatch through one of its
chunks.
"""

import re
from typing import NamedTuple

from autoshard.errors import AutoshardError

_TEXT = re.compile(r"([FBIW])(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")


class Action(NamedTuple):
    """One action of a pipeline rank. Its text `F3.1` is the forward of microbatch 3 through the rank's chunk 1.

    kind: F forward, B backward. A backward may come in two parts: I is all of it but the gradients of matrix products'
    weights, which W adds at any time after. On pipeline rank r of pp, chunk c is virtual stage c * pp + r.
    """

    kind: str
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        """The text form, such as F3.1, which `parse` reads."""
        return f"{self.kind}{self.microbatch}.{self.chunk}"

    @staticmethod
    def parse(text: str) -> "Action":
        """The action that a text such as F3.1 stands for. Raises AutoshardError for any other text."""
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise AutoshardError(f"action {str(text)[:60]!r} is none; one reads F3.1, B3.1, I3.1 or W3.1")
        return Action(match[1], int(match[2]), int(match[3]))


Order = tuple[Action, ...]
"""The actions of one pipeline rank, in order."""
