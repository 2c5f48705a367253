"""Open a place for checkpoints, or one checkpoint, where a user's path or s3://bucket/prefix says it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoshard.checkpoint.directory import LocalFolder, LocalStore
from autoshard.checkpoint.place import is_remote
from autoshard.checkpoint.store import Folder, Store


def open_store(location: str | Path) -> Store:
    """The place at a path or s3://bucket/prefix; nothing is made, and nothing but its lock looked at yet.

    Raises AutoshardError for a wrong name, where s3:// needs a library that is not installed or cannot be used.
    """
    if not is_remote(location):
        return LocalStore(Path(location))
    from autoshard.checkpoint.s3 import open_s3_store

    return open_s3_store(str(location))


def open_folder(location: str | Path) -> Folder:
    """The checkpoint at a path or s3://bucket/key; nothing is looked at yet."""
    if not is_remote(location):
        return LocalFolder(Path(location))
    from autoshard.checkpoint.s3 import open_s3_folder

    return open_s3_folder(str(location))


def named_folders(location: str | Path, manifest: str) -> Sequence[Folder]:
    """The checkpoints that a user may mean by a location: itself if it has the file `manifest`, else those in it."""
    folder = open_folder(location)
    return [folder] if folder.has(manifest) else open_store(location).folders()
