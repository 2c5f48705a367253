"""The CSV of a sweep, one row a point. Rows are appended as points end, so that a sweep may be killed at any time.

At its end the whole file is replaced, in order. Of rows with one key the last holds.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.fields import show
from autoshard.models.registry import is_user_module
from autoshard.planner.options import OPTIONS
from autoshard.plugins.version import version_with_plugins
from autoshard.sweeps.grid import Point
from autoshard.sweeps.outcome import CHOSEN, OK, RESULTS, RUNS, STATUSES, TEXTS, Outcome

FILE_OPTIONS = ("model", "hardware", "expert_imbalance")
"""Options that may name a file; a row is reused only while the contents of those files stay the same."""

LAST = ("files", "autoshard_version")
"""The last columns, which say of what a row follows besides its options."""

WHOLE = ("devices", "chosen_lnc", "chosen_nodes")
"""Fields of an Outcome that are whole numbers."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One row of the table. values: option name -> text, '' where the sweep does not name it. files: digest of the
    files that options name."""

    values: Mapping[str, str]
    files: str
    version: str
    outcome: Outcome

    @property
    def key(self) -> Key:
        return (*(self.values.get(name, "") for name in OPTIONS), self.files, self.version)


def row_of(point: Point, outcome: Outcome) -> Row:
    values = {name: "" if value is None else str(value) for name, value in point.items()}
    return Row(values, files_digest(point), version_with_plugins(), outcome)


def key_of(point: Point) -> Key:
    """The key by which the row of this point is found."""
    return row_of(point, Outcome(OK)).key


def files_digest(point: Point) -> str:
    """The first twelve hex digits of SHA-256 over the files that the point names; '' where it names none."""
    digest = hashlib.sha256()
    found = False
    for path, _ in files_of(point).values():
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            digest.update(path.read_bytes())
            found = True
    return digest.hexdigest()[:12] if found else ""


def files_of(point: Point) -> dict[str, tuple[Path, str]]:
    """Option -> (what may be a file, what follows its path: ':MyModel' of 'my_file.py:MyModel', else '')."""
    texts = {name: str(point[name]) for name in FILE_OPTIONS if point.get(name) is not None}
    parts = {name: text.rpartition(":") if is_user_module(text) else (text, "", "") for name, text in texts.items()}
    return {name: (Path(file), colon + made) for name, (file, colon, made) in parts.items()}


def option_columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """The options that any of the rows names: the first columns of their table."""
    return tuple(name for name in OPTIONS if any(row.values.get(name) for row in rows))


def write_table(path: Path, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Writes the rows as CSV: the options, then the outcome. columns: the options; None: those that any row names.
    Raises AutoshardError where it cannot."""
    used = option_columns(rows) if columns is None else columns
    header = _line([*used, *RESULTS, *LAST])
    write_text(path, header + "".join(_row_line(row, used) for row in rows), "table")


def append_row(path: Path, row: Row, columns: Sequence[str]) -> None:
    """Adds a row to a table with these options as its first columns; it is on disk when this returns. Raises
    AutoshardError where it cannot."""
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(_row_line(row, columns))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise AutoshardError(f"table {path} cannot be written: {error.strerror or error}") from None


def _row_line(row: Row, columns: Sequence[str]) -> str:
    outcome = asdict(row.outcome)
    options = (row.values.get(name, "") for name in columns)
    return _line([*options, *(_cell(outcome[name]) for name in RESULTS), row.files, row.version])


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    """A value as text; whole numbers are written without '.0'."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def read_table(path: Path) -> tuple[Row, ...]:
    """The rows of an earlier sweep; none where there is no file. Raises AutoshardError for a file that is no table of a
    sweep."""
    if not path.exists():
        return ()
    try:
        text = path.read_bytes().decode("utf-8-sig")
        whole = text[: text.rfind("\n") + 1]  # a machine that lost power may have torn the last line
        reader = csv.DictReader(io.StringIO(whole, newline=""), strict=True)
        if not {"status", "layout", *LAST} <= set(reader.fieldnames or ()):
            raise AutoshardError(f"table {path} is not that of a sweep; choose another --out or remove it")
        unknown = [name for name in reader.fieldnames or () if name not in (*OPTIONS, *RESULTS, *LAST)]
        if unknown:
            raise AutoshardError(
                f"table {path} has the column {show(unknown[0])}, which is not that of a sweep; choose another --out "
                "or remove it"
            )
        return tuple(_row(path, reader.line_num, cells) for cells in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AutoshardError(f"table {path} cannot be read: {error}; choose another --out or remove it") from None


def _row(path: Path, line: int, cells: Mapping[str, str | None]) -> Row:
    try:
        outcome = Outcome(**{name: _value(name, cells.get(name) or "") for name in RESULTS})
        values = {name: cells[name] or "" for name in OPTIONS if name in cells}
        row = Row(values, cells["files"] or "", cells["autoshard_version"] or "", outcome)
    except (KeyError, ValueError):
        row = None
    if row is None or outcome.status not in STATUSES or outcome.run not in RUNS:
        raise AutoshardError(
            f"table {path}, line {line}: not a row of a sweep; choose another --out or remove it"
        ) from None
    return row


def _value(name: str, cell: str) -> Any:
    """The value of one field of an Outcome in a cell. Raises ValueError for a word where a number belongs."""
    if name in TEXTS:
        return cell
    if not cell:
        return None
    if name in WHOLE:
        return int(cell)
    return cell if name in ("layout", *CHOSEN.values()) else float(cell)
