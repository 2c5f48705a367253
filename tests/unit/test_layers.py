"""Imports go one way: a folder of autoshard imports only from folders above it in the table of autoshard/README.md, and
no file imports one that imports it, itself or through others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "autoshard"
DATA = {"hardware", "recipes"}
"""Folders without code."""
CIRCLES = {
    (
        "spec.cluster",
        "spec.hardware_file",
    ): "a cluster of an older plan, given another number of nodes, asks the "
    "file of its instance, whose reader makes clusters; a function above both would take with_nodes from Cluster",
    **{
        (
            f"spec.checks.{file}",
            "spec.model",
        ): "a model is checked as it is made; files of its checks have its type alone"
        for file in (path.stem for path in (PACKAGE / "spec" / "checks").glob("[a-z]*.py"))
    },
}
"""(file, file that it imports) -> why this arrow closes a circle all the same."""


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


@cache
def imports_of(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom)))


def imported(source: str) -> Iterator[str]:
    """The folders that a module imports from, at its top or inside its functions."""
    for node in imports_of(source):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("autoshard."))
        elif node.module == "autoshard":
            yield from (alias.name for alias in node.names)
        elif (node.module or "").startswith("autoshard."):
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


def files() -> dict[str, Path]:
    """Module, without `autoshard.` in front -> file; of a package its __init__."""
    found = {}
    for _, path in sources():
        *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(folders if name == "__init__" else [*folders, name])] = path
    return found


def imported_files(source: str, known: Mapping[str, object]) -> set[str]:
    """The modules among `known` that a module imports: at its top, inside its functions, or for its types alone."""
    found = set()
    for node in imports_of(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one.removeprefix("autoshard.") in known else str(node.module) for one in inner]
        found |= {name.removeprefix("autoshard.") for name in names if name.startswith("autoshard.")}
    return found & set(known)


def circle(arrows: Mapping[str, set[str]], without: set[tuple[str, str]]) -> list[str]:
    """A circle of files, each of which imports the next, that has none of the arrows `without`; empty for none."""
    kept = {here: {there for there in found if (here, there) not in without} for here, found in arrows.items()}
    try:
        TopologicalSorter(kept).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@lru_cache(maxsize=1)
def arrows_of_files() -> dict[str, set[str]]:
    known = files()
    found = {name: imported_files(path.read_text(encoding="utf-8"), known) - {name} for name, path in known.items()}
    assert sum(map(len, found.values())) > 2_000
    return found


def test_no_file_imports_one_that_imports_it() -> None:
    assert circle(arrows_of_files(), set(CIRCLES)) == []


def test_every_circle_that_is_allowed_is_there() -> None:
    arrows = arrows_of_files()
    for arrow in CIRCLES:
        assert arrow in pairwise(circle(arrows, set(CIRCLES) - {arrow}))


def test_a_circle_of_files_is_seen() -> None:
    lines = "def late():\n    from autoshard.files import codec\n    import autoshard.units\n"
    assert imported_files(lines, {"files": 0, "files.codec": 0, "units": 0}) == {"files.codec", "units"}
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}, set()) == ["a", "b", "c", "a"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}, {("c", "a")}) == []
