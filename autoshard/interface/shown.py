"""Values that show themselves: as a page in print(), as HTML in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod

from autoshard.files.fields import check_integer, own_number

WIDTH = 100
"""Columns of a page in print()."""


class Shown(ABC):
    """A value with a page of text; where it has Markdown, a notebook shows that."""

    def page(self, width: int = WIDTH, color: bool = False) -> str:
        """Itself as text, which ends with a newline. width: columns. Raises AutoshardError for a width that is no
        number of columns."""
        return self._page(columns(width), color)

    @abstractmethod
    def _page(self, width: int, color: bool) -> str:
        """`page`, of a width that is one."""

    def markdown(self) -> str:
        """Itself as Markdown."""
        return f"```text\n{self.page()}```\n"

    def __str__(self) -> str:
        return self.page().rstrip("\n")

    def __repr__(self) -> str:
        first, *_ = str(self).splitlines() or ("",)
        return f"<{type(self).__name__}: {' '.join(first.split())}>"

    def _repr_html_(self) -> str:
        return html_of(self.markdown())


def columns(width: object) -> int:
    """The width of a page, columns. Raises AutoshardError for what is no number of them."""
    found = own_number(width)
    check_integer("a page", "width", found)
    return int(found)


def html_of(markdown: str) -> str:
    """Markdown as HTML that loads nothing and runs nothing; what looks like HTML in it is shown as text."""
    from markdown_it import MarkdownIt

    return f'<div class="autoshard">{MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)}</div>'
