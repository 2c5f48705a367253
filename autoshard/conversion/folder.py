"""Make the output folder: it is there when all of it is on the disk, and else not at all."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import sync_folder
from autoshard.files.reached import reached
from autoshard.units import format_bytes


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which is renamed to `target` when the context ends; after an error or Ctrl-C nothing is
    left.

    Raises AutoshardError when there is something at `target`, or nothing can be written beside it. One that is raised
    in the context names `target`, not the folder, which is gone.
    """
    target = target.absolute()
    check_free(target)
    written = target.with_name(f"{_begin(target)}{os.getpid()}.tmp")
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _delete_abandoned(target)
            written.mkdir()
        except OSError as error:
            raise AutoshardError(f"{target} cannot be written: {error.strerror or error}") from None
        yield written
        for folder in (*(path for path in written.rglob("*") if path.is_dir()), written):
            sync_folder(folder)
        written.rename(target)  # an empty folder gives way
        sync_folder(target.parent)
    except OSError as error:
        raise AutoshardError(f"{target} cannot be written: {error.strerror or error}") from None
    except AutoshardError as error:
        raise AutoshardError(str(error).replace(str(written), str(target))) from None
    finally:
        shutil.rmtree(written, ignore_errors=True)


def _begin(target: Path) -> str:
    """The begin of the names of this machine's temporary folders; only a process and .tmp stand behind it."""
    return f".{target.name[:100]}.{socket.gethostname()}."


def _delete_abandoned(target: Path) -> None:
    """Delete the temporary folders of earlier conversions to the same target that were ended by kill -9 on this
    machine: whether another's process lives cannot be seen from here.
    """
    begin = _begin(target)
    for path in target.parent.glob(f"{escape(begin)}*.tmp"):
        process = path.name.removeprefix(begin).removesuffix(".tmp")
        if process.isdecimal() and not Path("/proc", process).exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)


def check_free(target: Path) -> None:
    """Raise AutoshardError when a file, or a folder with something in it, is in the way at `target`."""
    with reached(str(target)):
        if target.is_dir():
            if any(target.iterdir()):
                raise AutoshardError(f"{target} is a folder with something in it: name another, or delete it first")
        elif target.exists() or target.is_symlink():
            raise AutoshardError(f"{target} is a file: name a folder that is not there yet")


def check_space(target: Path, needed_bytes: int) -> None:
    """Raise AutoshardError when the disk has less room than needed_bytes."""
    there = target.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed_bytes > free:
        raise AutoshardError(
            f"{target} needs {format_bytes(needed_bytes)}, its disk has {format_bytes(free)} left: nothing was written"
        )
