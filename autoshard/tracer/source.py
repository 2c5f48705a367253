"""Find the line of the user's code that a node of the exported graph comes from."""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\n\s*(?P<code>[^\n]*)')
_TORCH = str(Path(torch.__file__).parent)
_NOT_THEIRS = (_TORCH, str(Path(__file__).parent), str(Path(os.__file__).parent), "<")

UNKNOWN_LINE = "an unknown line, such as a lambda's"
"""Instead of a line: torch writes down those of functions called forward alone."""


@dataclass(frozen=True)
class Place:
    """A place in the user's code.

    path: of the submodule, such as 'model.layers.0.mlp'. line: 'file.py:12'. code: the text of that line.
    """

    path: str
    line: str
    code: str

    @property
    def words(self) -> str:
        """The place in an error."""
        path = f"in {self.path or 'the model'}"
        return f"{self.line} (`{self.code[:120]}`, {path})" if self.line else f"{UNKNOWN_LINE} ({path})"


def place_of(node: fx.Node, outside: Place) -> Place:
    """The place of a node, by what the export wrote down; what it did not write is taken from `outside`."""
    stack = node.meta.get("nn_module_stack") or {}
    path = outside.path
    if stack:
        path = list(stack.values())[-1][0].removeprefix("module").removeprefix(".")
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    own = [frame for frame in frames if not frame["file"].startswith(_NOT_THEIRS)]
    if not own:
        return Place(path, outside.line, outside.code)
    return Place(path, f"{Path(own[-1]['file']).name}:{own[-1]['line']}", own[-1]["code"].strip())


def line_of(error: BaseException) -> str:
    """The text ' at file.py:12 (`its code`)': the innermost line of an error that the user wrote; '' if there is none.

    Lines of torch, of Python and of this package are not the user's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno} (`{own[-1].line}`)" if own else ""
