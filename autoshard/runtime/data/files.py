"""Finds the data files that a path names, and how each is read."""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autoshard.errors import AutoshardError
from autoshard.files.json_file import read_json
from autoshard.files.reached import reached

DATA_OPTION = "--data"
TEXT, JSONL, PARQUET, ARROW = "text", "JSONL", "Parquet", "Arrow"
_MAX_JSON_BYTES = 100_000_000
SUFFIXES = {".txt": TEXT, ".md": TEXT, ".jsonl": JSONL, ".ndjson": JSONL, ".parquet": PARQUET, ".arrow": ARROW}
"""Suffix -> how such a file is read. A file that the user names is read as text where its suffix is neither listed nor
one of _PERHAPS_DATA."""
_PERHAPS_DATA = frozenset((".json", ".csv", ".tsv", ".gz", ".bz2", ".xz", ".zst", ".zip"))
"""Suffixes of files that are not read and may have been meant."""
_MOST_NAMES = 5
"""Of files that are not read, named in one line."""


@dataclass(frozen=True)
class DataFiles:
    """The files of a data set. kind: how all of them are read. source: where they came from, for people. unread: names
    of files beside them that may have been meant, for people; '' without any. option: named them, for errors."""

    kind: str
    paths: tuple[Path, ...]
    source: str
    unread: str = ""
    option: str = DATA_OPTION

    def named(self, file: Path) -> str:
        """The file as errors name it."""
        return f"{self.option} {file}"


def find_files(path: Path, option: str = DATA_OPTION) -> DataFiles:
    """The data files of a path: a file, a Hugging Face dataset written by save_to_disk, or all data files in a folder,
    by path.

    If a folder holds JSONL, Parquet or Arrow files, only these are read: a README.md beside them is not data. Links are
    followed. Raises AutoshardError where there is nothing to read, files of two kinds, or a link that leads nowhere.
    """
    with reached(f"{option} {path}"):
        if path.is_file():
            if path.suffix.lower() in _PERHAPS_DATA:
                raise AutoshardError(
                    f"{option} {path} ends in {path.suffix}, which is not read: rows of JSON end in .jsonl, plain text "
                    "in .txt"
                )
            return DataFiles(SUFFIXES.get(path.suffix.lower(), TEXT), (path,), str(path), option=option)
        if not path.is_dir():
            what = "is neither a regular file nor a folder" if path.exists() else "does not exist"
            raise AutoshardError(f"{option} {path} {what}: give a file or folder of {_known()}")
        if (path / "dataset_dict.json").is_file():
            return _saved_dataset(path / _training_split(path, option), option)
        if (path / "state.json").is_file():
            return _saved_dataset(path, option)
        by_suffix: dict[str, list[Path]] = {}
        for file in _files_in(path, option):
            by_suffix.setdefault(file.suffix.lower(), []).append(file)
    kinds = {SUFFIXES[suffix] for suffix in by_suffix if suffix in SUFFIXES}
    tables = sorted(kinds - {TEXT})
    if len(tables) > 1:
        raise AutoshardError(f"{option} {path} has files of {' and '.join(tables)}: name a folder of one kind")
    if not kinds:
        raise AutoshardError(f"{option} {path} has no file ending in {_known()}")
    kind = tables[0] if tables else TEXT
    files = _sorted(by_suffix, {suffix for suffix, one in SUFFIXES.items() if one == kind})
    unread = _sorted(by_suffix, _PERHAPS_DATA | {".txt"} if tables else _PERHAPS_DATA)
    source = f"{path} ({len(files)} file{'s' if len(files) > 1 else ''})"
    return DataFiles(kind, files, source, _named([str(file.relative_to(path)) for file in unread]), option)


def _files_in(path: Path, option: str) -> list[Path]:
    """Every file of a folder and the folders in it. Links to folders are followed; no folder is read twice."""

    def fail(error: OSError) -> NoReturn:
        raise AutoshardError(f"cannot read {option} {error.filename}: {error.strerror or error}") from error

    found: list[Path] = []
    seen = {path.resolve()}
    for folder, folders, names in os.walk(path, onerror=fail, followlinks=True):
        inner = {name: Path(folder, name).resolve() for name in sorted(folders)}
        folders[:] = []
        for name, real in inner.items():
            if real not in seen:
                seen.add(real)
                folders.append(name)
        for file in (Path(folder, name) for name in names):
            if file.is_file():
                found.append(file)
            elif file.is_symlink() and not file.exists():
                raise AutoshardError(f"{option} {file} is a link that leads nowhere: mend it or remove it")
    return found


def _sorted(by_suffix: dict[str, list[Path]], suffixes: Set[str]) -> tuple[Path, ...]:
    return tuple(sorted(file for suffix in suffixes for file in by_suffix.get(suffix, ())))


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _known() -> str:
    return f"{', '.join(list(SUFFIXES)[:-1])} or {list(SUFFIXES)[-1]}"


def _training_split(path: Path, option: str) -> str:
    splits = _json(path / "dataset_dict.json", option).get("splits")
    if not isinstance(splits, list) or "train" not in splits:
        raise AutoshardError(f"{option} {path} has no split 'train' but {splits}: name the folder of one split")
    return "train"


def _saved_dataset(path: Path, option: str) -> DataFiles:
    """The files that a saved dataset's state.json lists, in its order."""
    state = _json(path / "state.json", option)
    if state.get("_indices_data_files"):
        raise AutoshardError(f"{option} {path} is stored with an index of its rows: save it after flatten_indices()")
    entries = state.get("_data_files")
    listed = (
        [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    names = [name for name in listed if isinstance(name, str) and Path(name).name == name]
    if not names or names != listed:
        raise AutoshardError(f"{option} {path / 'state.json'} lists no files of its own folder in _data_files")
    files = tuple(path / name for name in names)
    for file in files:
        if not file.is_file():
            raise AutoshardError(f"{option} {path}: {file.name}, listed in state.json, is missing")
    return DataFiles(
        ARROW, files, f"{path} (saved dataset, {len(files)} file{'s' if len(files) > 1 else ''})", option=option
    )


def _json(file: Path, option: str) -> dict[str, Any]:
    values = read_json(file, option, _MAX_JSON_BYTES)
    if not isinstance(values, dict):
        raise AutoshardError(f"{option} {file} is not a JSON object")
    return values
