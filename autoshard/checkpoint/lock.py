"""Lock a folder of checkpoints, so that one run at a time writes there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.urls import check_folder

LOCK = "lock"
HEARTBEAT_S = 10.0
STALE_AFTER_S = 120.0
"""A holder on another machine that was not heard of for so long is gone. A guess: twelve heartbeats."""
WATCHED_S = 2.5 * HEARTBEAT_S
"""A lock that seems to be left, or to come from the future, is watched for so long: clocks jump, a living holder does
not miss two heartbeats."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def directory_lock(directory: Path, option: str = "checkpoint_dir") -> Iterator[None]:
    """Hold the lock of a folder while the context lasts; the folder is made if need be, and then removed again where
    nothing else is in it at the end, as when a run fails before it saves. option: names it in errors.

    On one machine the kernel knows who holds the file and lets go when that process ends, however it ended. Another
    machine's holder is known by its heartbeat, the age of which is measured by the file system's clock alone; a lock
    that seems abandoned is watched before it is taken.
    Raises AutoshardError when another run holds it, when the folder cannot be written to, and for a URL or a file.
    """
    check_folder(option, directory)
    path = directory / LOCK
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise AutoshardError(f"{option}={directory} cannot be written to: {error.strerror or error}") from None
    stop = threading.Event()
    try:
        held_here = _take(descriptor, path, option)
        _refuse_living_holder(descriptor, directory, option, held_here)
        me = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": secrets.token_hex(8)})
        _write(descriptor, me, directory, option)
        beat = threading.Thread(target=_beat, args=(descriptor, stop), daemon=True, name="checkpoint-lock")
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            with contextlib.suppress(OSError):  # a full disk: an old heartbeat tells the same
                if os.pread(descriptor, 4096, 0) == me.encode():  # else another machine took it over
                    os.ftruncate(descriptor, 0)
                    if made:
                        _remove_if_unused(path, made)
    finally:
        os.close(descriptor)


def _remove_if_unused(path: Path, made: Sequence[Path]) -> None:
    """Remove the lock that is held and the folders that were made for it, the innermost first, while nothing else is in
    them. Raises OSError where it cannot."""
    if [*path.parent.iterdir()] == [path]:
        path.unlink()
        for folder in made:
            folder.rmdir()


def holding(directory: Path) -> str:
    """The record of the lock that is held now, of which no two are alike; '' where none is, or it cannot be read."""
    try:
        return (directory / LOCK).read_text()
    except (OSError, ValueError):
        return ""


def _take(descriptor: int, path: Path, option: str) -> bool:
    """Whether the kernel gave the lock; false where the file system has no locks. Raises if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AutoshardError(held_message(path.parent, _holder(descriptor), option)) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise AutoshardError(f"{path} cannot be locked: {error.strerror or error}") from None
        return False
    try:
        is_there = os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        is_there = False
    if not is_there:  # its holder failed, and removed it
        raise AutoshardError(held_message(path.parent, {}, option))
    return True


def _refuse_living_holder(descriptor: int, directory: Path, option: str, held_here: bool) -> None:
    holder = _holder(descriptor)
    if not holder or (held_here and holder.get("host") == socket.gethostname()):
        return
    probe = directory / f".{LOCK}.{os.getpid()}.tmp"
    try:
        probe.write_bytes(b"")
        age_s = probe.stat().st_mtime - os.fstat(descriptor).st_mtime
        probe.unlink()
    except OSError as error:
        raise AutoshardError(f"{option}={directory} cannot be written to: {error.strerror or error}") from None
    before = os.fstat(descriptor).st_mtime_ns
    if not 0 <= age_s < STALE_AFTER_S:
        time.sleep(WATCHED_S)
        if os.fstat(descriptor).st_mtime_ns == before:
            return
    raise AutoshardError(held_message(directory, holder, option) + f"; if that run is gone, wait {STALE_AFTER_S:.0f} s")


def lost_message(place: object, removed: str) -> str:
    lost = f"this run no longer holds the lock of {place}: somebody removed {removed}"
    return f"{lost}, or another run took it; start it again"


def held_message(directory: object, holder: dict[str, object], option: str = "checkpoint_dir") -> str:
    who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
    return f"{option}={directory} is in use by {who}: give each run its own"


def _holder(descriptor: int) -> dict[str, object]:
    """The record of the holder in the lock file; empty if the lock was released or the record cannot be understood."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(os.pread(descriptor, 4096, 0))
        if isinstance(value, dict):
            return value
    return {}


def _write(descriptor: int, text: str, directory: Path, option: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError as error:
        raise AutoshardError(f"{option}={directory} cannot be written to: {error.strerror or error}") from None


def _beat(descriptor: int, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(descriptor)
