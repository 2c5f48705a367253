"""The conditions of a shell script: those that are known are decided, and what stands outside of all is told apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

_OPENS = re.compile(r"[ \t]*(?:if|case)\b")
_BRANCHES = re.compile(r"[ \t]*(?:elif|else)\b")
_CLOSES = re.compile(r"[ \t]*(?:fi|esac)\b")
_CLOSED = re.compile(r"[;\s](?:fi|esac)[ \t]*(?:[;#&|)].*)?$")
"""The end of a line that closes the condition which it opens."""
_PARTS = re.compile(r";[ \t]*(?=(?:then|elif|else|fi|esac)\b)")
"""A semicolon before a word of a condition that stands on one line."""
_HEAD = re.compile(r"[ \t]*(?:if|elif)\b([^\n;]*)[;\n]\s*then\b")
_ELSE = re.compile(r"[ \t]*else\b")
_HEAD_LINES = 3
"""Lines from `if` to `then`, at most."""


def decided(text: str, holds: Callable[[str], bool | None]) -> str:
    """The text with the branch alone that runs, of each condition where that is known.

    holds: whether what stands between `if` and `then` is true; None where nobody knows. A branch runs where those
    before it are known not to. A condition that does not end is none.
    """
    lines = _lines(text)
    kept, dropped = list(lines), [False] * len(lines)
    for edges in _blocks(lines):
        branch = None if dropped[edges[0]] else _branch(lines, edges, holds)
        if branch is None:
            continue
        begin, stop, rest = branch
        for start, end in ((edges[0], begin), (stop, edges[-1])):
            kept[start:end], dropped[start:end] = [""] * (end - start), [True] * (end - start)
        if begin < stop:
            kept[begin] = rest
        kept[edges[-1]] = _CLOSES.sub("", lines[edges[-1]], count=1)
    return "\n".join(kept)


def unconditional(text: str) -> str:
    """The text without the conditions and all that they decide about."""
    lines, outermost = _lines(text), -1
    for first, *_, last in _blocks(lines):
        if last > outermost:
            lines[first:last] = [""] * (last - first)
            lines[last] = _CLOSES.sub("", lines[last], count=1)
            outermost = last
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    """The lines; those that hold a whole condition are as many as it has parts."""
    lines = []
    for line in text.split("\n"):
        lines += _PARTS.sub("\n", line).split("\n") if _OPENS.match(line) and _CLOSED.search(line) else [line]
    return lines


def _blocks(lines: list[str]) -> list[list[int]]:
    """By condition, the places of the lines that open it, begin another branch, and close it; by rising first line."""
    opened: list[list[int]] = []
    found = []
    for index, line in enumerate(lines):
        if _OPENS.match(line):
            opened.append([index])
        elif opened and _BRANCHES.match(line):
            opened[-1].append(index)
        elif opened and _CLOSES.match(line):
            found.append([*opened.pop(), index])
    return sorted(found)


def _branch(lines: list[str], edges: list[int], holds: Callable[[str], bool | None]) -> tuple[int, int, str] | None:
    """(first line of the branch that runs, the line behind it, what the first one holds of it); both the last line
    where none runs, None where nobody knows which does."""
    for start, stop in pairwise(edges):
        if otherwise := _ELSE.match(lines[start]):
            return start, stop, lines[start][otherwise.end() :]
        head = "\n".join(lines[start : min(start + _HEAD_LINES, stop)])
        found = _HEAD.match(head)
        held = None if found is None else holds(found[1].strip())
        if found is None or held is None:
            return None
        if held:
            return start + found[0].count("\n"), stop, head[found.end() :].partition("\n")[0]
    return edges[-1], edges[-1], ""
