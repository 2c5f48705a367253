"""Imports go one way: a folder of autoshard imports only from folders above it in the table of autoshard/README.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "autoshard"
DATA = {"hardware", "recipes"}
"""Folders without code."""


def layers() -> dict[str, int]:
    """Folder or module -> its line in the table, the bottom first."""
    rows = re.findall(r"^\| (`.*?) \|", (PACKAGE / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: line for line, row in enumerate(rows) for name in re.findall(r"`(\w+)`", row)}


def sources() -> Iterator[tuple[str, Path]]:
    """(folder, file) of every Python file of the package."""
    for path in sorted(PACKAGE.glob("*.py")):
        if path.stem not in ("__init__", "__main__"):
            yield path.stem, path
    for folder in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in DATA):
        for path in sorted(folder.rglob("*.py")):
            yield folder.name, path


def imported(source: str) -> Iterator[str]:
    """The folders that a module imports from, at its top or inside its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("autoshard."))
        elif isinstance(node, ast.ImportFrom) and node.module == "autoshard":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoshard."):
            yield str(node.module).split(".")[1]


def arrows_upward(known: dict[str, int], found: Iterator[tuple[str, str]]) -> list[str]:
    """The pairs (importing folder, imported folder) that break the order, as text."""
    return sorted({f"{here} -> {there}" for here, there in found if here != there and known[here] <= known[there]})


def test_every_folder_has_a_line_and_every_line_a_folder() -> None:
    assert set(layers()) == {folder for folder, _ in sources()}


def test_no_arrow_goes_upward() -> None:
    found = ((here, there) for here, path in sources() for there in imported(path.read_text(encoding="utf-8")))
    assert arrows_upward(layers(), ((here, there) for here, there in found)) == []


def test_an_arrow_upward_is_seen() -> None:
    lines = "def late() -> None:\n    from autoshard.planner.search import search\n"
    assert arrows_upward(layers(), (("cost", there) for there in imported(lines))) == ["cost -> planner"]


def test_an_arrow_between_equals_is_seen() -> None:
    assert arrows_upward({"one": 0, "other": 0}, iter([("one", "other")])) == ["one -> other"]
