"""Docstrings stand alone: none begins with a word that only the function's name or a neighbour explains, or with one of
its arguments."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAGMENT_WORDS = ("Of ", "As ", "That ", "Those ", "What ", "Where ")
FRAGMENTS_LEFT: dict[str, int] = {}
"""Folder -> docstrings that still begin so. Every other folder has none. A number here only ever goes down."""


def sources() -> Iterator[tuple[str, Path]]:
    """(folder, file) of every Python file of autoshard and models; a file of no folder goes by its own name."""
    for path in sorted((ROOT / "autoshard").glob("*.py")):
        yield path.stem, path
    for folder in sorted(path for path in (ROOT / "autoshard").iterdir() if path.is_dir() and not path.is_symlink()):
        for path in sorted(folder.rglob("*.py")):
            yield folder.name, path
    for path in sorted((ROOT / "models").rglob("*.py")):
        yield "models", path


@cache
def docstrings(source: str) -> tuple[tuple[int, str, str], ...]:
    """(line, name, docstring) of a module, without a name, and of its classes and functions that have one."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    found = ((getattr(node, "lineno", 1), getattr(node, "name", ""), ast.get_docstring(node)) for node in nodes)
    return tuple((line, name, docstring) for line, name, docstring in found if docstring)


def fragments(source: str) -> Iterator[str]:
    """'line: docstring' of a module's public docstrings that begin with one of FRAGMENT_WORDS."""
    for line, name, docstring in docstrings(source):
        if docstring.startswith(FRAGMENT_WORDS) and not name.startswith("_"):
            yield f"{line}: {docstring.splitlines()[0]}"


def test_no_public_docstring_is_a_fragment() -> None:
    places = [(folder, f"{path}:{text}") for folder, path in sources() for text in fragments(path.read_text("utf-8"))]
    counts = Counter(folder for folder, _ in places)
    others = [place for folder, place in places if counts[folder] > FRAGMENTS_LEFT.get(folder, 0)]
    assert not others, "\n".join(others)
    assert dict(counts) == FRAGMENTS_LEFT, "fewer are left: lower the number, or delete the line of a clean folder"


def headless(source: str) -> Iterator[str]:
    """'line: docstring' of a module's classes and functions that explain an argument before they say what they
    are. Of __init__ the class says that."""
    for line, name, docstring in docstrings(source):
        if name not in ("", "__init__") and re.match(r"[a-z_]+(, [a-z_]+)*: ", docstring):
            yield f"{line}: {docstring.splitlines()[0]}"


def test_a_docstring_says_first_what_it_is_of() -> None:
    found = [f"{path}:{text}" for _, path in sources() for text in headless(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_a_docstring_without_a_head_is_seen() -> None:
    text = 'class Moment:\n    """start, end: seconds."""\n    def __init__(self):\n        """unit: of both."""\n'
    assert list(headless(text)) == ["1: start, end: seconds."]
    assert list(headless('class Moment:\n    """A moment. start, end: seconds."""\n')) == []


def test_all_folders_are_looked_at() -> None:
    folders = {folder for folder, _ in sources()}
    assert {"files", "graph", "runtime", "models", "errors"} <= folders
    assert set(FRAGMENTS_LEFT) <= folders


def test_a_fragment_is_seen() -> None:
    text = '"""What is here."""\nclass Plan:\n    def size(self):\n        """Of the plan."""\n'
    assert list(fragments(text)) == ["1: What is here.", "3: Of the plan."]


def test_private_and_whole_docstrings_pass() -> None:
    text = '"""Sizes of plans."""\ndef _size():\n    """Of the plan."""\ndef size():\n    """Offset in bytes."""\n'
    assert list(fragments(text)) == []
