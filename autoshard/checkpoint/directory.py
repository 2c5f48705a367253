"""The folders of a run's checkpoints: step-00000030 is complete, step-00000030.tmp is being written."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from autoshard.checkpoint.manifest import MANIFEST, FileRecord, Manifest
from autoshard.checkpoint.tensor_file import checksum
from autoshard.errors import AutoshardError
from autoshard.interop.atomic_file import write_text

LATEST = "latest"
"""A text file with the name of the newest checkpoint, for people and scripts; resuming looks at the folders."""
PLAN = "plan.json"
_NAME = re.compile(r"step-(\d{8,})")


def step_folder(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08}"


def being_written(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08}.tmp"


def step_folders(directory: Path) -> list[Path]:
    """Newest first, complete or not. Raises AutoshardError for a folder that cannot be read."""
    try:
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AutoshardError(f"checkpoint_dir={directory} cannot be read: {error.strerror or error}") from None
    return sorted(found, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    match = _NAME.match(folder.name)
    assert match is not None, folder
    return int(match[1])


def file_problem(folder: Path, record: FileRecord) -> str:
    """What is wrong with a file of a checkpoint: it is missing, shorter or longer, or a bit differs; "" if nothing."""
    path = folder / record.name
    try:
        size = path.stat().st_size
        if size != record.bytes:
            return f"{record.name} has {size:,} bytes, not {record.bytes:,}"
        return "" if checksum(path) == record.sha256 else f"{record.name} was changed: its SHA-256 is another"
    except FileNotFoundError:
        return f"{record.name} is missing"
    except OSError as error:
        return f"{record.name} cannot be read: {error.strerror or error}"


def write_plan_file(folder: Path, text: str) -> FileRecord:
    """The plan beside the tensors, checked as they are."""
    path = folder / PLAN
    write_text(path, text, "plan of a checkpoint")
    return FileRecord(PLAN, path.stat().st_size, checksum(path), ())


def commit(directory: Path, manifest: Manifest, keep: int) -> Path:
    """Make what all ranks have written a checkpoint, point to it, and delete all but the newest `keep`.

    A crash at any moment leaves every checkpoint that was complete before. Raises AutoshardError or OSError.
    """
    written, final = being_written(directory, manifest.step), step_folder(directory, manifest.step)
    for one in manifest.files:
        if not (written / one.name).is_file():
            raise AutoshardError(f"{one.name} was written, but not here: all ranks need to share {directory}")
    write_text(written / MANIFEST, manifest.to_json(), "checkpoint manifest")
    _sync(written)
    written.rename(final)
    _sync(directory)
    write_text(directory / LATEST, final.name + "\n", "pointer to the latest checkpoint")
    for old in step_folders(directory)[keep:]:
        _delete(old)
    return final


def clean(directory: Path, step: int) -> list[str]:
    """Before a run goes on after `step`: delete what was never complete, set aside what lies beyond -> the latter.

    Beyond are damaged checkpoints that were skipped, and all that follow when an older one was asked for.
    """
    for path in directory.glob("step-*.tmp"):
        _delete(path)
    moved = []
    for folder in step_folders(directory):
        if step_of(folder) > step:
            number = 1
            while (aside := folder.with_name(f"{folder.name}.aside-{number}")).exists():
                number += 1
            folder.rename(aside)
            moved.append(aside.name)
    return moved


def _delete(folder: Path) -> None:
    """Whole or not at all for a reader: renamed first."""
    gone = folder if folder.suffix == ".tmp" else folder.with_name(folder.name + ".tmp")
    if gone != folder:
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(folder: Path) -> None:
    """What was created or renamed in the folder survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
