"""Lock a prefix of a bucket, so that one run at a time writes there.

The lock is an object that is created only if there is none, and is written again and again while it is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from autoshard.checkpoint.lock import HEARTBEAT_S, STALE_AFTER_S, WATCHED_S, held_message
from autoshard.checkpoint.s3_bucket import Bucket, S3Error, errors_of
from autoshard.errors import AutoshardError

_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


@dataclass(frozen=True)
class _Held:
    """The lock of another holder. age_s: seconds since its last heartbeat, by the clock of S3 alone."""

    holder: dict[str, object]
    etag: str
    age_s: float


@contextmanager
def s3_lock(bucket: Bucket, key: str) -> Iterator[None]:
    """Hold the lock of a prefix while the context lasts.

    A holder of this machine that is gone is replaced at once, one of another machine or container after STALE_AFTER_S
    seconds without a heartbeat.

    Raises AutoshardError when another run holds it, or when the bucket cannot be used.
    """
    me = {"pid": os.getpid(), **id_space(), "token": secrets.token_hex(8)}
    etag = _take(bucket, key, json.dumps(me).encode())
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(bucket, key, me, etag, stop), daemon=True, name="checkpoint-lock")
    beat.start()
    try:
        yield
    finally:
        stop.set()
        beat.join()
        with contextlib.suppress(S3Error):  # what cannot be deleted grows stale
            held = _held(bucket, key)
            if held is not None and held.holder.get("token") == me["token"]:
                bucket.delete([key])


def holding(bucket: Bucket, key: str) -> str:
    """The token of the lock that is held now, of which no two are alike; '' where none is, or it must not be read.
    Raises S3Error when the bucket cannot be used."""
    try:
        held = _held(bucket, key)
    except S3Error as error:
        if error.code != "AccessDenied":
            raise
        return ""
    return "" if held is None else str(held.holder.get("token", ""))


def _take(bucket: Bucket, key: str, text: bytes) -> str:
    """Create or take over the lock object, and return its ETag."""
    etag = _put(bucket, key, text, IfNoneMatch="*")
    if etag is not None:
        return etag
    held = _held(bucket, key)
    if held is not None and held.holder == json.loads(text):  # an attempt whose answer was lost
        return held.etag
    if held is not None and not _is_gone(bucket, key, held):
        message = held_message(bucket.url(key).removesuffix("/lock"), held.holder)
        raise AutoshardError(f"{message}; if that run is gone, wait {STALE_AFTER_S:.0f} s")
    condition = {"IfNoneMatch": "*"} if held is None else {"IfMatch": held.etag}
    etag = _put(bucket, key, text, **condition)
    if etag is None:
        raise AutoshardError(held_message(bucket.url(key).removesuffix("/lock"), {}))
    return etag


def _put(bucket: Bucket, key: str, text: bytes, **conditions: str) -> str | None:
    """Write the lock object under a condition, and return its ETag; None if the condition is not met."""
    try:
        return bucket.put(key, text, **conditions)
    except S3Error as error:
        if error.code in _REFUSED or (error.code in ("NoSuchKey", "404") and "IfMatch" in conditions):
            return None
        raise


def _held(bucket: Bucket, key: str) -> _Held | None:
    """The present holder of the lock; None if nobody has it."""
    try:
        with errors_of(bucket.url(key)):
            answer = bucket.client.get_object(Bucket=bucket.name, Key=key)
            data: bytes = answer["Body"].read()
    except S3Error as error:
        if error.code == "NoSuchKey":
            return None
        raise
    holder: Any = {}
    with contextlib.suppress(ValueError):
        holder = json.loads(data)
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return _Held(
        holder if isinstance(holder, dict) else {}, answer["ETag"], (now - answer["LastModified"]).total_seconds()
    )


def _is_gone(bucket: Bucket, key: str, held: _Held) -> bool:
    if id_space().items() <= held.holder.items() and not _is_alive(held.holder.get("pid")):
        return True  # an id that lives may be another process's by now
    if 0 <= held.age_s < STALE_AFTER_S:
        return False
    time.sleep(WATCHED_S)  # S3's clock may have jumped: a holder that lives writes meanwhile
    again = _held(bucket, key)
    return again is None or again.etag == held.etag


def id_space() -> dict[str, str]:
    """The names of all within which a process id means one process: the host, whose name others may have too, its last
    start and, as containers have their own, the namespace of ids; "" where the system names none."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot": boot, "pid_namespace": namespace}


def _is_alive(pid: object) -> bool:
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, and is another user's
        pass
    return True


def _beat(bucket: Bucket, key: str, me: dict[str, object], etag: str, stop: threading.Event) -> None:
    """Write the lock object again and again, each time with another number, so that its ETag and time change."""
    number = 0
    while not stop.wait(HEARTBEAT_S):
        number += 1
        with contextlib.suppress(S3Error):
            text = json.dumps({**me, "beat": number}).encode()
            new = _put(bucket, key, text, IfMatch=etag)
            if new is None:  # an answer that was lost, or another run took what it thought was left
                held = _held(bucket, key)
                if held is None or held.holder.get("token") != me["token"]:
                    return
                new = held.etag
            etag = new
