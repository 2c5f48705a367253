"""The interface of a place for checkpoints: a folder of this machine or of a shared file system, or a prefix in S3."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from autoshard.checkpoint.tensor_file import Bytes
from autoshard.errors import AutoshardError

LATEST = "latest"
"""A text file with the name of the newest checkpoint, for people and scripts; resuming looks at the folders."""
MANIFEST, PLAN = "manifest.json", "plan.json"
_NAME = re.compile(r"step-(\d{8,})")


class PlaceError(AutoshardError):
    """The place cannot be used now. That says nothing about the checkpoints that it holds."""


class Folder(Protocol):
    """The files of one checkpoint, complete or not. Every method raises AutoshardError, naming the file."""

    parallel_reads: int
    """Reads that pay at a time: more than one where each waits for a network."""

    @property
    def name(self) -> str: ...

    def __str__(self) -> str:
        """The whole path or URL, for people."""

    def json(self, name: str, what: str, most_bytes: int) -> object:
        """The value of a JSON file of at most most_bytes bytes. what: its role, in errors."""

    def has(self, name: str) -> bool: ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int, stop: int) -> Bytes:
        """Bytes [start, stop) of a file."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """All bytes of a file, some megabytes at a time."""


class Store(Protocol):
    """A run's checkpoints in one place. Every method raises AutoshardError, in one line that names the place."""

    def lock(self) -> AbstractContextManager[None]:
        """Hold the place while the context lasts, so that no other run writes there; it is made if need be."""

    def folders(self) -> Sequence[Folder]:
        """The checkpoints, complete or not, newest first: by the number of their step, whatever a clock says."""

    def write(self, step: int, name: str, chunks: Iterable[memoryview], size: int) -> None:
        """Write a file of a checkpoint that is not complete yet; it survives a loss of power when this returns.

        chunks: its bytes. size: how many there are.
        """

    def commit(self, step: int, manifest: str, sizes: Mapping[str, int]) -> Folder:
        """Make all that the ranks have written a checkpoint, at once, and return it.

        sizes: bytes of every file that it must have.
        """

    def point_to(self, folder: Folder | None) -> None:
        """Write the checkpoint's name into `latest`; None: delete that file."""

    def delete(self, folder: Folder) -> None:
        """Delete a checkpoint; a reader sees all of it or nothing."""

    def discard(self, step: int) -> None:
        """Delete the files of step `step`, which is not a complete checkpoint."""

    def clean(self, step: int) -> list[str]:
        """Prepare the place for a run that goes on after `step`; returns the names of the checkpoints that were set
        aside.

        Deletes checkpoints that were never complete. Sets aside those beyond `step`: damaged ones that were skipped,
        and all that follow when the user asked for an older one. `latest` then names the newest that is left.
        """


class Hashed:
    """Passes chunks on to a file, and computes the SHA-256 of those that have passed."""

    def __init__(self, chunks: Iterable[memoryview]):
        self._chunks, self._digest = chunks, hashlib.sha256()

    def __iter__(self) -> Iterator[memoryview]:
        for chunk in self._chunks:
            self._digest.update(chunk)
            yield chunk

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def folder_name(step: int) -> str:
    return f"step-{step:08}"


def rank_file(rank: int) -> str:
    """The name of the file that a rank writes in a checkpoint."""
    return f"rank-{rank:05}.safetensors"


def is_step(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def step_of(folder: Folder) -> int:
    return int(folder.name.removeprefix("step-"))


def complete_folders(store: Store) -> list[Folder]:
    """The complete checkpoints of a place, newest first."""
    return [folder for folder in store.folders() if folder.has(MANIFEST)]


def prune(store: Store, newest: int, keep: int, keep_every: int | None) -> None:
    """Delete old complete checkpoints up to step `newest`; the last `keep` of them and those of every keep_every-th
    step stay.
    """
    old = [folder for folder in complete_folders(store) if step_of(folder) <= newest]
    for folder in old[keep:]:
        if keep_every is None or step_of(folder) % keep_every:
            store.delete(folder)


def checksum(folder: Folder, name: str) -> str:
    """SHA-256 of a file of a checkpoint, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in folder.chunks(name):
        digest.update(chunk)
    return digest.hexdigest()


def file_problem(folder: Folder, name: str, size: int, sha256: str) -> str:
    """The reason why a file of a checkpoint is not the one that was written; "" if it is.

    It is missing, shorter or longer than `size` bytes, or its SHA-256 is not `sha256`.
    Raises PlaceError if the place cannot be read now.
    """
    problem = size_problem(folder, name, size)
    if problem:
        return problem
    try:
        return "" if checksum(folder, name) == sha256 else f"{name} was changed: its SHA-256 is another"
    except PlaceError:
        raise
    except AutoshardError as error:
        return str(error)


def size_problem(folder: Folder, name: str, size: int) -> str:
    """The reason why a file of a checkpoint has not the `size` bytes that were written; "" if it has.

    Raises PlaceError if the place cannot be read now.
    """
    try:
        bytes_there = folder.size(name)
    except PlaceError:
        raise
    except AutoshardError as error:
        return str(error)
    return "" if bytes_there == size else f"{name} has {bytes_there:,} bytes, not {size:,}"
