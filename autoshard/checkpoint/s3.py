"""Checkpoints in S3, which has no rename: a checkpoint is complete when its manifest, written last, is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from autoshard.checkpoint.lock import LOCK, lost_message
from autoshard.checkpoint.place import S3
from autoshard.checkpoint.s3_bucket import Bucket, S3Error, s3_client
from autoshard.checkpoint.s3_lock import holding, s3_lock
from autoshard.checkpoint.store import LATEST, MANIFEST, Folder, complete_folders, folder_name, is_step, step_of
from autoshard.checkpoint.tensor_file import Bytes
from autoshard.errors import AutoshardError
from autoshard.files.json_file import parse_json

_PARALLEL_READS = 8


class S3Folder:
    """One checkpoint in a bucket: the objects under its prefix."""

    parallel_reads = _PARALLEL_READS

    def __init__(self, bucket: Bucket, prefix: str):
        self.bucket, self.prefix = bucket, prefix

    @property
    def name(self) -> str:
        return self.prefix.rpartition("/")[2]

    def __str__(self) -> str:
        return self.bucket.url(self.prefix)

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self.bucket.keys(self.key(name))

    def json(self, name: str, what: str, most_bytes: int) -> object:
        where = f"{what} {self}/{name}"
        if not self.has(name):
            raise AutoshardError(f"{where} does not exist")
        size = self.size(name)
        if size > most_bytes:
            raise AutoshardError(f"{where} has {size:,} bytes, more than the {most_bytes:,} that are read")
        return parse_json(self.bucket.get(self.key(name), 0, size), where)

    def size(self, name: str) -> int:
        try:
            return self.bucket.size(self.key(name))
        except S3Error as error:
            if error.code != "404":
                raise
            raise AutoshardError(f"{name} is missing") from None

    def read(self, name: str, start: int, stop: int) -> Bytes:
        return np.frombuffer(self.bucket.get(self.key(name), start, stop), np.uint8)

    def chunks(self, name: str) -> Iterator[bytes]:
        return self.bucket.chunks(self.key(name), self.size(name))


class S3Store:
    """A run's checkpoints under a prefix of a bucket.

    A store that is made while the prefix is locked changes it under that lock alone: not once another run took it.
    """

    def __init__(self, bucket: Bucket, prefix: str):
        self._bucket, self._prefix = bucket, prefix
        self._lock = holding(bucket, self._lock_key)

    def __str__(self) -> str:
        return self._bucket.url(self._prefix.rstrip("/"))

    def lock(self) -> AbstractContextManager[None]:
        return s3_lock(self._bucket, self._lock_key)

    def folders(self) -> Sequence[S3Folder]:
        names = [name for name in self._bucket.folders(f"{self._prefix}step-") if is_step(f"step-{name}")]
        return sorted((self._folder(f"step-{name}") for name in names), key=step_of, reverse=True)

    def write(self, step: int, name: str, chunks: Iterable[memoryview], size: int) -> None:
        self._check_lock()
        self._bucket.put_large(self._folder(folder_name(step)).key(name), chunks, size)

    def commit(self, step: int, manifest: str, sizes: Mapping[str, int]) -> Folder:
        self._check_lock()
        folder = self._folder(folder_name(step))
        there = self._bucket.keys(folder.key(""))
        for name, size in sizes.items():
            if there.get(folder.key(name)) != size:
                raise AutoshardError(f"{folder}/{name} was written, but is not there: do all ranks use one bucket?")
        self._bucket.put(folder.key(MANIFEST), manifest.encode())
        return folder

    def point_to(self, folder: Folder | None) -> None:
        self._check_lock()
        key = f"{self._prefix}{LATEST}"
        if folder is None:
            self._bucket.delete([key])
        else:
            self._bucket.put(key, f"{folder.name}\n".encode())

    def delete(self, folder: Folder) -> None:
        self._check_lock()
        own_folder = self._folder(folder.name)
        self._bucket.delete([own_folder.key(MANIFEST)])
        self._delete_all(own_folder)

    def discard(self, step: int) -> None:
        if not self._keeps_lock():
            return
        folder = self._folder(folder_name(step))
        self._delete_all(folder)
        self._bucket.abort_uploads(folder.key(""))

    def clean(self, step: int) -> list[str]:
        self._check_lock()
        self._bucket.abort_uploads(f"{self._prefix}step-")
        moved = []
        for folder in self.folders():
            if not folder.has(MANIFEST):
                self._delete_all(folder)
            elif step_of(folder) > step:
                moved.append(self._set_aside(folder))
        self.point_to(next(iter(complete_folders(self)), None))
        return moved

    def _set_aside(self, folder: S3Folder) -> str:
        """Move a complete checkpoint to a name of its own, and return that. One of both is complete at any moment."""
        number = 1
        while (aside := self._folder(f"{folder.name}.aside-{number}")).has(MANIFEST):
            number += 1
        self._delete_all(aside)  # of a move that was interrupted
        names = [key.removeprefix(folder.key("")) for key in self._bucket.keys(folder.key(""))]
        for name in sorted(names, key=MANIFEST.__eq__):  # the manifest comes last
            self._bucket.copy(folder.key(name), aside.key(name))
        self.delete(folder)
        return aside.name

    @property
    def _lock_key(self) -> str:
        return f"{self._prefix}{LOCK}"

    def _keeps_lock(self) -> bool:
        return not self._lock or holding(self._bucket, self._lock_key) == self._lock

    def _check_lock(self) -> None:
        if not self._keeps_lock():
            raise AutoshardError(lost_message(self, f"its object {LOCK}"))

    def _folder(self, name: str) -> S3Folder:
        return S3Folder(self._bucket, f"{self._prefix}{name}")

    def _delete_all(self, folder: S3Folder) -> None:
        self._bucket.delete(list(self._bucket.keys(folder.key(""))))


def open_s3_store(location: str) -> S3Store:
    """The store at s3://bucket/prefix. Raises AutoshardError for a wrong name and without boto3."""
    bucket, prefix = _parsed(location)
    return S3Store(bucket, f"{prefix}/" if prefix else "")


def open_s3_folder(location: str) -> S3Folder:
    return S3Folder(*_parsed(location))


def _parsed(location: str) -> tuple[Bucket, str]:
    name, _, prefix = location.removeprefix(S3).partition("/")
    if not name:
        raise AutoshardError(f"{location} names no bucket: s3://BUCKET/PREFIX")
    return Bucket(name, s3_client()), prefix.strip("/")
