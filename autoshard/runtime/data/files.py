"""Finds the data files that a path names, and how each is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.json_file import read_json

TEXT, JSONL, PARQUET, ARROW = "text", "JSONL", "Parquet", "Arrow"
_MAX_JSON_BYTES = 100_000_000
SUFFIXES = {".txt": TEXT, ".md": TEXT, ".jsonl": JSONL, ".parquet": PARQUET, ".arrow": ARROW}
"""Suffix -> how such a file is read. A file that the user names is read as text where its suffix is not listed."""


@dataclass(frozen=True)
class DataFiles:
    """The files of a data set. kind: how all of them are read. source: where they came from, for people."""

    kind: str
    paths: tuple[Path, ...]
    source: str


def find_files(path: Path) -> DataFiles:
    """The data files of a path: a file, a Hugging Face dataset written by save_to_disk, or all data files in a folder,
    by path.

    If a folder holds JSONL, Parquet or Arrow files, only these are read: a README.md beside them is not data. Raises
    AutoshardError where there is nothing to read, or files of two kinds.
    """
    if path.is_file():
        return DataFiles(SUFFIXES.get(path.suffix.lower(), TEXT), (path,), str(path))
    if not path.is_dir():
        what = "is neither a regular file nor a folder" if path.exists() else "does not exist"
        raise AutoshardError(f"--data {path} {what}: give a file or folder of {_known()}")
    if (path / "dataset_dict.json").is_file():
        return _saved_dataset(path / _training_split(path))
    if (path / "state.json").is_file():
        return _saved_dataset(path)
    by_kind: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() in SUFFIXES and file.is_file():
            by_kind.setdefault(SUFFIXES[file.suffix.lower()], []).append(file)
    tables = sorted(kind for kind in by_kind if kind != TEXT)
    if len(tables) > 1:
        raise AutoshardError(f"--data {path} has files of {' and '.join(tables)}: name a folder of one kind")
    kind = tables[0] if tables else TEXT
    files = by_kind.get(kind, [])
    if not files:
        raise AutoshardError(f"--data {path} has no file ending in {_known()}")
    return DataFiles(kind, tuple(files), f"{path} ({len(files)} file{'s' if len(files) > 1 else ''})")


def _known() -> str:
    return f"{', '.join(list(SUFFIXES)[:-1])} or {list(SUFFIXES)[-1]}"


def _training_split(path: Path) -> str:
    splits = _json(path / "dataset_dict.json").get("splits")
    if not isinstance(splits, list) or "train" not in splits:
        raise AutoshardError(f"--data {path} has no split 'train' but {splits}: name the folder of one split")
    return "train"


def _saved_dataset(path: Path) -> DataFiles:
    """The files that a saved dataset's state.json lists, in its order."""
    state = _json(path / "state.json")
    if state.get("_indices_data_files"):
        raise AutoshardError(f"--data {path} is stored with an index of its rows: save it after flatten_indices()")
    entries = state.get("_data_files")
    listed = (
        [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
    names = [name for name in listed if isinstance(name, str) and Path(name).name == name]
    if not names or names != listed:
        raise AutoshardError(f"--data {path / 'state.json'} lists no files of its own folder in _data_files")
    files = tuple(path / name for name in names)
    for file in files:
        if not file.is_file():
            raise AutoshardError(f"--data {path}: {file.name}, listed in state.json, is missing")
    return DataFiles(ARROW, files, f"{path} (saved dataset, {len(files)} file{'s' if len(files) > 1 else ''})")


def _json(file: Path) -> dict[str, Any]:
    values = read_json(file, "--data", _MAX_JSON_BYTES)
    if not isinstance(values, dict):
        raise AutoshardError(f"--data {file} is not a JSON object")
    return values
