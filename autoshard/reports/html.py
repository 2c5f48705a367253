"""HTML from values: text is escaped wherever it comes from, and only what is built here counts as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Union

VOID = ("input", "meta", "br")
LONG = 24
"""Rows of a table that are shown at once; longer ones scroll below their header."""


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


Child = Union[str, Html, "list[Html]", None]


def text(value: Child) -> Html:
    """The value as HTML; a text that is none is escaped."""
    if value is None:
        return Html("")
    if isinstance(value, list):
        return Html("".join(value))
    return value if isinstance(value, Html) else Html(escape(value))


def element(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. attributes: `class_` is class, `data_x` is data-x; True is a bare one; None and False are none."""
    given = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    inside = "".join(map(text, children))
    return Html(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{inside}</{name}>")


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def code(words: str) -> Html:
    """A layout or another name of many parts as code, which a line may break behind a `+`."""
    return element("code", Html(escape(words).replace("+", "+<wbr>")))


def bullets(items: Iterable[Child]) -> Html:
    """A list of sentences; nothing where there are none."""
    found = [element("li", item) for item in items]
    return element("ul", found) if found else Html("")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Child]], right: Sequence[int] = ()) -> Html:
    """A table that scrolls by itself where the page is narrow and can be copied. The first cell of a row names it.

    caption: what the table has, for everybody. right: indices of the columns of numbers.
    """

    def kind(index: int) -> str | None:
        return "number" if index in right else None

    head = [
        element("th", name, scope="col", class_=kind(index)) if name else element("td")
        for index, name in enumerate(header)
    ]
    body = [
        element(
            "tr",
            *(
                element("td" if index else "th", cell, class_=kind(index), scope=None if index else "row")
                for index, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    whole = element("table", element("caption", caption), element("thead", element("tr", head)), element("tbody", body))
    copy = element("button", "Copy table", type="button", class_="copy", data_copy=True, aria_label=f"Copy: {caption}")
    return element(
        "div",
        element(
            "div",
            whole,
            class_="scroll long" if len(body) > LONG else "scroll",
            role="region",
            aria_label=f"Table: {caption}",
            tabindex=0,
        ),
        copy,
        class_="table",
    )


def bar(share: float, color: int = 0) -> Html:
    """A bar of that share of its cell, for eyes alone: its number stands beside it."""
    width = f"width:{100 * min(max(share, 0.0), 1.0):.2f}%"
    return element("span", class_=f"bar c{color}", style=width, aria_hidden="true")
