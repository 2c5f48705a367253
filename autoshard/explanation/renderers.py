"""Pages of `autoshard explain` in the forms of plug-ins."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.errors import AutoshardError
from autoshard.explanation.describe import Description
from autoshard.files.fields import show
from autoshard.plugins.table import Table

Renderer = Callable[[Description], str]
STANDARD = ("text", "json", "markdown")
"""Forms that autoshard has itself."""
RENDERERS = Table[Renderer]("renderers", callable, "a function from a Description to text")
"""Forms of plug-ins, by name."""


def rendered(description: Description, name: str) -> str:
    """A description in the form of a plug-in. Raises AutoshardError where no plug-in has the name, or where it gives no
    text."""
    if name not in RENDERERS:
        raise AutoshardError(f"format={name} is not known; known: {', '.join(STANDARD)}, or that of a plug-in")
    text = RENDERERS.call(name, description)
    if not isinstance(text, str):
        raise AutoshardError(f"renderer {RENDERERS.said(name)} gave {show(text)}; it must give text")
    return text
