"""One run a prefix of a bucket: an object that is only made where there is none, and is written anew while held.

Needs S3's conditional writes (If-None-Match and If-Match on PUT, in S3 since 2024).
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
from typing import Any

from autoshard.checkpoint.lock import HEARTBEAT_S, STALE_AFTER_S, WATCHED_S, held_message
from autoshard.checkpoint.s3_bucket import Bucket, S3Error, errors_of
from autoshard.errors import AutoshardError

_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


@dataclass(frozen=True)
class _Held:
    """age_s: since the last heartbeat, by the clock of S3 alone."""

    holder: dict[str, object]
    etag: str
    age_s: float


@contextmanager
def s3_lock(bucket: Bucket, key: str) -> Iterator[None]:
    """Hold the prefix. A holder of this machine that is gone is replaced at once, one of another machine when nothing
    was heard of it for STALE_AFTER_S.

    Raises AutoshardError when another run holds it, or when the bucket cannot be used.
    """
    me = {"pid": os.getpid(), "host": socket.gethostname(), "token": secrets.token_hex(8)}
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


def _take(bucket: Bucket, key: str, text: bytes) -> str:
    """-> the ETag of our object."""
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
    """-> the ETag; None where the condition is not met."""
    try:
        return bucket.put(key, text, **conditions)
    except S3Error as error:
        if error.code in _REFUSED or (error.code in ("NoSuchKey", "404") and "IfMatch" in conditions):
            return None
        raise


def _held(bucket: Bucket, key: str) -> _Held | None:
    """Who has the lock; None where nobody has."""
    try:
        with errors_of(bucket.url(key)):
            found = bucket.client.get_object(Bucket=bucket.name, Key=key)
            data: bytes = found["Body"].read()
    except S3Error as error:
        if error.code == "NoSuchKey":
            return None
        raise
    holder: Any = {}
    with contextlib.suppress(ValueError):
        holder = json.loads(data)
    now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
    return _Held(
        holder if isinstance(holder, dict) else {}, found["ETag"], (now - found["LastModified"]).total_seconds()
    )


def _is_gone(bucket: Bucket, key: str, held: _Held) -> bool:
    if held.holder.get("host") == socket.gethostname() and not _is_alive(held.holder.get("pid")):
        return True  # an id that lives may be another process's by now
    if 0 <= held.age_s < STALE_AFTER_S:
        return False
    time.sleep(WATCHED_S)  # S3's clock may have jumped: a holder that lives writes meanwhile
    again = _held(bucket, key)
    return again is None or again.etag == held.etag


def _is_alive(pid: object) -> bool:
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _beat(bucket: Bucket, key: str, me: dict[str, object], etag: str, stop: threading.Event) -> None:
    """Write the object anew, with another number, so that its ETag and its time change."""
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
