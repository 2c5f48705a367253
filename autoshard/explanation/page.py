"""Building blocks of a page: lines of styled text, tables, and paragraphs with a hanging label."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence

NARROWEST, WIDEST = 60, 120
"""The narrowest and widest page in columns; other terminals get the nearer of the two."""
LEAST_LAST_COLUMN = 28
"""A last column that would be narrower than this moves to lines of its own."""

LEAST_SHARE = 0.0005
"""A share or a difference below this would show as 0.0 %, so it gets no row of its own."""

Span = tuple[str, str]
"""A piece of text and its style (in rich's words); '' is no style."""
Line = tuple[Span, ...]


def wrap(text: str, width: int, first: str = "", other: str = "") -> list[str]:
    """The text as indented lines of at most width columns; words with hyphens stay whole, and those that are longer
    than a line break behind a `+` or `=`. first, other: the indents."""
    return _Wrapper(width, initial_indent=first, subsequent_indent=other, break_on_hyphens=False).wrap(text)


class _Wrapper(textwrap.TextWrapper):
    def _split(self, text: str) -> list[str]:
        room = self.width - len(self.subsequent_indent)
        parted = ([word] if len(word) <= room else re.split(r"(?<=[+=])", word) for word in super()._split(text))
        return [part for parts in parted for part in parts]


def paint(lines: Iterable[Line], width: int, color: bool) -> str:
    """The lines of styled spans as text. rich is imported only for colour."""
    if not color:
        return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    console = Console(file=StringIO(), force_terminal=True, color_system="standard", width=width, no_color=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def heading(name: str, text: str, width: int) -> list[Line]:
    """A section's name, followed by its main numbers."""
    if not text:
        return [((name, "bold cyan"),)]
    label = f"{name:<7} " if len(name) <= 7 else f"{name}  "
    (_, first), *rest = hanging(label, text, width, "bold")
    return [((label, "bold cyan"), first), *rest]


def wrapped(text: str, width: int, indent: str, style: str = "") -> list[Line]:
    """A paragraph, all of it indented."""
    return [((line, style),) for line in wrap(text, width, indent, indent)]


def hanging(label: str, text: str, width: int, style: str = "", indent: int | None = None) -> list[Line]:
    """A label, then text wrapped behind it. indent: of the further lines; None puts them under the text."""
    below = " " * (len(label) if indent is None else indent)
    lines = wrap(text, width, " " * len(label), below) or [""]
    first = (label, "dim"), (lines[0][len(label) :], style)
    return [first, *(((line, style),) for line in lines[1:])]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, right: Sequence[int]) -> list[Line]:
    """A table with columns two blanks apart. The last column wraps; where it would be too narrow it goes below its row.
    right: indices of the columns that are aligned to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header) - 1)]
    left = 2 + sum(widths) + 2 * len(widths)
    below = width - left < LEAST_LAST_COLUMN
    last_indent = " " * (6 if below else left)
    lines: list[Line] = []
    for number, row in enumerate([header, *rows]):
        cells = [
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=False))
        ]
        style = "dim" if number == 0 else ""
        last = wrap(row[-1], width - len(last_indent))
        line = "  " + "  ".join(cells)
        if below:
            lines += [((text, style),) for text in wrap(line.rstrip(), width, other=last_indent)]
        else:
            lines.append(((f"{line}  {''.join(last[:1])}", style),))
            last = last[1:]
        lines += [((last_indent + text, style or "dim"),) for text in last]
    return lines


def listed(words: Sequence[str]) -> str:
    """'1, 2 and 4'. words: at least one."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def more(share: float) -> str:
    """A share with its sign: 0.021 -> '+2.1%'. A value that rounds to zero from below is '+0.0%' too."""
    text = f"{share:+.1%}"
    return "+0.0%" if text == "-0.0%" else text


def span(low: float, high: float, shown: Callable[[float], str]) -> str:
    """An interval as text: '117-141 s' where both ends have one unit, else '980 ms to 1.41 s'."""
    lower, higher = shown(low), shown(high)
    (number, unit), other = lower.split(), higher.split()[1]
    return f"{number}-{higher}" if unit == other else f"{lower} to {higher}"
