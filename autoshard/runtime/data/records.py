"""Reads rows of JSONL, Parquet and Arrow files as plain values, a few at a time."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.json_file import lone_surrogate
from autoshard.files.text_file import MAX_DEPTH, is_too_deep
from autoshard.runtime.data.files import ARROW, JSONL, PARQUET, DataFiles
from autoshard.units import format_bytes

ROWS_AT_ONCE = 256
"""How many rows of a Parquet file are in memory as Python values; a guess that keeps rows of a megabyte harmless."""
MOST_ROW_BYTES = 64_000_000
"""The longest row of JSONL, which is in memory as a whole; a guess: longer than any document."""

_FILE_MAGIC = b"ARROW1"
_EXTENSION_KEY, _PICKLED = b"ARROW:extension:name", b"arrow.py_extension_type"


@dataclass(frozen=True)
class Record:
    """One row. values: its columns by name, as far as they were asked for. columns: the names of all. file, row: where
    it is, the file as errors name it; the first row is 1."""

    values: dict[str, Any]
    columns: tuple[str, ...]
    file: str
    row: int

    @property
    def place(self) -> str:
        return f"{self.file} row {self.row:,}"


def records(files: DataFiles, columns: tuple[str, ...] | None = None) -> Iterator[Record]:
    """Yields every row of every file, with the named columns (all columns for None, and of JSONL always).

    Other columns of a table are not looked at: Python has no value for some, such as times in nanoseconds.
    Raises AutoshardError, with file and row, for anything that is not a row of that kind.
    """
    read = {JSONL: _jsonl, PARQUET: _parquet, ARROW: _arrow}[files.kind]
    for file in files.paths:
        name = files.named(file)
        yield from _readable(name, read(file, name, columns))


def column_names(files: DataFiles) -> tuple[str, ...] | None:
    """Names of the columns of the first row; None where there is no row."""
    for record in records(files, ()):
        return record.columns
    return None


def _readable(name: str, rows: Iterator[Record]) -> Iterator[Record]:
    try:
        yield from rows
    except OSError as error:  # pyarrow raises it for damaged files, too
        raise AutoshardError(f"cannot read {name}: {error.strerror or _first_line(error)}") from error


def _jsonl(file: Path, name: str, columns: tuple[str, ...] | None) -> Iterator[Record]:
    with file.open("rb") as lines:
        for row, line in enumerate(iter(lambda: lines.readline(MOST_ROW_BYTES + 1), b""), start=1):
            place = f"{name} row {row:,}"
            if len(line) > MOST_ROW_BYTES:
                raise AutoshardError(
                    f"{place} has more than the {format_bytes(MOST_ROW_BYTES)} that are read of a row: each row needs "
                    "a line of its own"
                )
            try:
                text = line.decode("utf-8-sig" if row == 1 else "utf-8")
                if not text.strip():
                    continue
                values = json.loads(text)
            except UnicodeDecodeError as error:
                raise AutoshardError(
                    f"{place}: byte 0x{error.object[error.start]:02x} is not UTF-8; save it as UTF-8"
                ) from None
            except (ValueError, RecursionError) as error:
                raise AutoshardError(f"{place} is not JSON: {_first_line(error)}") from error
            if not isinstance(values, dict):
                raise AutoshardError(f"{place} is not a JSON object")
            if text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(values):
                raise AutoshardError(f"{place} is nested deeper than {MAX_DEPTH} levels")
            if half := lone_surrogate(text, values):
                raise AutoshardError(f"{place}: {half}")
            yield Record(values, tuple(values), name, row)


def _parquet(file: Path, name: str, columns: tuple[str, ...] | None) -> Iterator[Record]:
    pyarrow, parquet = _module("pyarrow", name), _module("pyarrow.parquet", name)
    try:
        with parquet.ParquetFile(file) as table:
            _refuse_code(table.schema_arrow, name)
            names = tuple(table.schema_arrow.names)
            wanted = None if columns is None else [one for one in columns if one in names]
            yield from _batches(table.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted), names, name)
    except pyarrow.ArrowException as error:
        raise AutoshardError(f"{name} is not Parquet: {_first_line(error)}") from error


def _arrow(file: Path, name: str, columns: tuple[str, ...] | None) -> Iterator[Record]:
    """Yields the rows of an Arrow file in either format: the stream, in which datasets are saved, or the file."""
    pyarrow = _module("pyarrow", name)
    try:
        with pyarrow.memory_map(str(file)) as source:
            is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            source.seek(0)
            if is_file:
                reader = pyarrow.ipc.open_file(source)
                _refuse_code(reader.schema, name)
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
                yield from _batches(_selected(batches, columns), tuple(reader.schema.names), name)
            else:
                stream = pyarrow.ipc.open_stream(source)
                _refuse_code(stream.schema, name)
                yield from _batches(_selected(stream, columns), tuple(stream.schema.names), name)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise AutoshardError(f"{name} is not Arrow: {_first_line(error)}") from error


def _refuse_code(schema: Any, name: str) -> None:
    """Refuses columns of a pickled Python type: pyarrow before 14.0.1 executed what they hold (CVE-2023-47248)."""
    fields = list(schema)
    while fields:
        field = fields.pop()
        said = (field.metadata or {}).get(_EXTENSION_KEY, b""), getattr(field.type, "extension_name", "").encode()
        if _PICKLED in said:
            raise AutoshardError(
                f"{name} is refused: column {field.name} has a pickled Python type, and data have nothing to run"
            )
        fields += [field.type.field(index) for index in range(field.type.num_fields)]


def _selected(batches: Any, columns: tuple[str, ...] | None) -> Iterator[Any]:
    for batch in batches:
        yield batch if columns is None else batch.select([name for name in columns if name in batch.schema.names])


def _batches(batches: Any, columns: tuple[str, ...], name: str) -> Iterator[Record]:
    row = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            some = batch.slice(start, ROWS_AT_ONCE)
            try:
                some.validate(full=True)  # else pyarrow trusts the file: damaged offsets would end the process
            except ValueError as error:
                last = row + some.num_rows
                raise AutoshardError(f"{name} rows {row + 1:,} to {last:,} are damaged: {_first_line(error)}") from None
            for values in some.to_pylist():
                row += 1
                yield Record(values, columns, name, row)


def _module(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AutoshardError(f"reading {name} needs pyarrow: pip install 'autoshard[data]'") from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
