"""Reads a CSV file of results: its rows, and the numbers in them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.text_file import printable, read_text
from autoshard.spec.model_types import MOST_REPEATED

Row = Mapping[str, str]
MAX_FILE_BYTES = 50_000_000
OTHERWISE = {";": "semicolons", "\t": "tabs"}
"""What spreadsheets may write between columns."""
MOST = 1_000_000_000
"""Of anything that a row counts."""


class Unscored(Exception):
    """Raised for a row that the cost model cannot be asked about; the text says why."""


def read_rows(path: Path) -> list[Row]:
    """All rows as column name -> text. Raises AutoshardError as read_lines does."""
    return list(read_lines(path).values())


def read_lines(path: Path) -> dict[int, Row]:
    """All rows as column name -> text, by the line of the file that each ends on.

    Raises AutoshardError for a file that is missing, unreadable, too large, not text, has two columns of one name, a
    row with more cells than columns, or other things than commas between its columns.
    """
    text = read_text(path, printable(path), MAX_FILE_BYTES, "CSV")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        names = Counter(name for name in reader.fieldnames or () if name)
        if between := [word for sign, word in OTHERWISE.items() if len(names) == 1 and sign in min(names)]:
            raise AutoshardError(f"{path} has {between[0]} between its columns; save it with commas")
        if twice := [name for name, columns in names.items() if columns > 1]:
            raise AutoshardError(f"{path} has the column {twice[0]} twice; keep one")
        return dict(_numbered(path, reader))
    except csv.Error as error:
        raise AutoshardError(f"{path} cannot be read: {error}") from None


def _numbered(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[int, Row]]:
    """Yields each row under the names of its columns, with its line. A short row's last cells are empty; empty ones
    beyond the last column are dropped."""
    columns = len(reader.fieldnames or ())
    for row in reader:
        beyond: Any = row.pop(None, [])
        if any(beyond):
            raise AutoshardError(
                f"{path}, line {reader.line_num}: {columns + len(beyond)} cells, and the first line names {columns} "
                "columns; a comma inside of a cell, as of 30,5, must be a point or in quotes"
            )
        yield reader.line_num, {name: value or "" for name, value in row.items() if name}


def check_columns(path: Path, row: Row, columns: Sequence[str]) -> None:
    """Raises AutoshardError that names the columns that a row lacks."""
    if missing := [name for name in columns if name not in row]:
        of = "column" if len(missing) == 1 else "columns"
        raise AutoshardError(f"{path} lacks the {of} {', '.join(missing)}")


def fields_left_open(is_gpt: bool) -> dict[str, Any]:
    """The fields of a ModelSpec that follow from the family, since no row has them: GPT-2's, or else Llama's."""
    return {
        "hidden_act": "gelu_new" if is_gpt else "silu",
        "norm_eps": 1e-5,
        "rope_theta": None if is_gpt else 10_000.0,
        "rope_scaling": None,
        "sliding_window": None,
        "attention_bias": is_gpt,
        "mlp_bias": is_gpt,
    }


def number(row: Row, name: str) -> float | None:
    """The finite number above 0 in a cell, or None."""
    try:
        value = float(row.get(name) or "nan")
    except ValueError:
        return None
    return value if isfinite(value) and value > 0 else None


def integer(row: Row, name: str, default: int | None = None) -> int:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise Unscored(f"{name}={text!r} is not a number") from None
    if not isfinite(value) or value != int(value):
        raise Unscored(f"{name}={text!r} is not a whole number")
    return int(value)


def count(row: Row, name: str, default: int | None = None, most: int = MOST) -> int:
    """The whole number in a cell, from 1 to `most`."""
    value = integer(row, name, default)
    if not 1 <= value <= most:
        raise Unscored(f"{name}={value} must be a whole number from 1 to {most:,}")
    return value


def blocks(row: Row) -> int:
    """The blocks of the row's model."""
    return count(row, "layers", most=MOST_REPEATED)


def pipeline(row: Row) -> tuple[int, int]:
    """(pipeline ranks, chunks of each) of a row: at most a stage for each block, and for each end."""
    pp, vpp = count(row, "pp", 1), count(row, "vpp", 1)
    if pp * vpp > blocks(row) + 2:  # some runs cut the embedding and the head as blocks
        raise Unscored(f"pp={pp} x vpp={vpp} is more stages than layers={blocks(row)}")
    return pp, vpp
