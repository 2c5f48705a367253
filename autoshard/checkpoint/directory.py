"""Checkpoints in a folder: step-00000030 is complete, step-00000030.tmp is being written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from autoshard.checkpoint.lock import LOCK, directory_lock, holding, lost_message
from autoshard.checkpoint.store import LATEST, MANIFEST, Folder, complete_folders, folder_name, is_step, step_of
from autoshard.checkpoint.tensor_file import Bytes, map_file
from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import sync_folder, write_text
from autoshard.files.json_file import read_json
from autoshard.files.reached import reached

_CHUNK_BYTES = 1 << 22


class LocalFolder:
    """One checkpoint in a folder of a file system."""

    parallel_reads = 1

    def __init__(self, path: Path):
        self.path = path
        self._mapped: dict[str, Bytes] = {}

    @property
    def name(self) -> str:
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)

    def json(self, name: str, what: str, most_bytes: int) -> object:
        return read_json(self.path / name, what, most_bytes)

    def has(self, name: str) -> bool:
        with reached(str(self.path)):
            return (self.path / name).exists()

    def size(self, name: str) -> int:
        try:
            return (self.path / name).stat().st_size
        except OSError as error:
            raise _unreadable(name, error) from None

    def read(self, name: str, start: int, stop: int) -> Bytes:
        """Bytes [start, stop) of a file, mapped: only what is used is read from the disk."""
        if name not in self._mapped:
            self._mapped[name] = map_file(self.path / name)
        return self._mapped[name][start:stop]

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with (self.path / name).open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise _unreadable(name, error) from None


class LocalStore:
    """A run's checkpoints in a folder, on one machine or on a file system that all ranks share.

    A store that is made while the folder is locked changes it under that lock alone: not once the folder was removed
    and perhaps made again by another run.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._lock = holding(directory)

    def __str__(self) -> str:
        return str(self.directory)

    def lock(self) -> AbstractContextManager[None]:
        return directory_lock(self.directory)

    def folders(self) -> Sequence[Folder]:
        try:
            folders = [LocalFolder(path) for path in self.directory.iterdir() if is_step(path.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AutoshardError(f"checkpoint_dir={self.directory} cannot be read: {_reason(error)}") from None
        return sorted(folders, key=step_of, reverse=True)

    def being_written(self, step: int) -> Path:
        return self.directory / f"{folder_name(step)}.tmp"

    def write(self, step: int, name: str, chunks: Iterable[memoryview], size: int) -> None:
        self._check_lock()
        path = self.being_written(step) / name
        try:
            path.parent.mkdir(parents=not self._lock, exist_ok=True)
            with path.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AutoshardError(f"{path} cannot be written: {_reason(error)}") from None

    def commit(self, step: int, manifest: str, sizes: Mapping[str, int]) -> Folder:
        """Rename what was written to step-N. A crash at any moment leaves every checkpoint that was complete before."""
        self._check_lock()
        written, final = self.being_written(step), LocalFolder(self.directory / folder_name(step))
        for name in sizes:
            if not (written / name).is_file():
                raise AutoshardError(f"{name} was written, but not here: all ranks need to share {self.directory}")
        write_text(written / MANIFEST, manifest, "checkpoint manifest")
        try:
            sync_folder(written)
            written.rename(final.path)
            sync_folder(self.directory)
        except OSError as error:
            raise AutoshardError(f"{final} cannot be written: {_reason(error)}") from None
        return final

    def point_to(self, folder: Folder | None) -> None:
        self._check_lock()
        if folder is None:
            (self.directory / LATEST).unlink(missing_ok=True)
        else:
            write_text(self.directory / LATEST, folder.name + "\n", "pointer to the latest checkpoint")

    def delete(self, folder: Folder) -> None:
        self._check_lock()
        path = self.directory / folder.name
        gone = path.with_name(f"{path.name}.tmp")
        try:
            path.rename(gone)
        except OSError as error:
            raise AutoshardError(f"{path} cannot be deleted: {_reason(error)}") from None
        shutil.rmtree(gone, ignore_errors=True)

    def discard(self, step: int) -> None:
        if self._keeps_lock():
            shutil.rmtree(self.being_written(step), ignore_errors=True)

    def clean(self, step: int) -> list[str]:
        self._check_lock()
        moved = []
        try:
            for path in self.directory.glob("step-*.tmp"):
                shutil.rmtree(path, ignore_errors=True)
            for folder in self.folders():
                if step_of(folder) > step:
                    number = 1
                    while (aside := self.directory / f"{folder.name}.aside-{number}").exists():
                        number += 1
                    (self.directory / folder.name).rename(aside)
                    moved.append(aside.name)
            self.point_to(next(iter(complete_folders(self)), None))
        except OSError as error:
            raise AutoshardError(f"checkpoint_dir={self.directory} cannot be written to: {_reason(error)}") from None
        return moved

    def _keeps_lock(self) -> bool:
        return not self._lock or holding(self.directory) == self._lock

    def _check_lock(self) -> None:
        if not self._keeps_lock():
            raise AutoshardError(lost_message(self.directory, f"the folder or its file {LOCK}"))


def _unreadable(name: str, error: OSError) -> AutoshardError:
    if error.errno == errno.ENOENT:
        return AutoshardError(f"{name} is missing")
    return AutoshardError(f"{name} cannot be read: {_reason(error)}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
