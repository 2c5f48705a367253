"""Pieces of work that try what a process of the server must not be able to do. tests/unit/test_server.py runs them."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoshard.server.isolated import Say


def attempt(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """Does what the job names; the answer says whether it was refused."""
    actions: dict[str, Callable[[], object]] = {
        "read": lambda: Path(job["path"]).read_text(),
        "read bytes by number": lambda: os.open(job["path"], os.O_RDONLY),
        "write": lambda: Path(job["path"]).write_text("x"),
        "delete": lambda: Path(job["path"]).unlink(),
        "shell": lambda: os.system(f"touch {job['path']}.made"),
        "process": lambda: subprocess.run(["touch", f"{job['path']}.made"], check=True),
        "fork": os.fork,
        "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
        "unpickle": lambda: pickle.loads(pickle.dumps(Path)),
        "trace": lambda: _trace(job["path"]),
    }
    try:
        actions[job["do"]]()
    except PermissionError as error:
        return {"refused": str(error)}
    return {"refused": None}


def _trace(path: str) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("theirs", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def take_memory(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """Takes memory without end."""
    kept = []
    while True:
        kept.append(bytearray(50_000_000))


def take_time(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """Sleeps, or computes, without end."""
    while True:
        if job["sleeps"]:
            time.sleep(1)


def crash(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """Fails with a secret in the error."""
    raise RuntimeError("the secret of this machine")


def find_slowly(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """Says in turn what the job lists as (seconds to wait before, value); the last value is the result."""
    *first, (wait_s, last) = job["said"]
    for before_s, value in first:
        time.sleep(before_s)
        say({"found": value})
    time.sleep(wait_s)
    return {"found": last}


def answer_slowly(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """Stands in for a search that takes seconds: what it knows first, then its answer."""
    first = {
        "html": "<p>Best so far</p>",
        "data": {},
        "title": "tp=1",
        "proven": "nothing is more than 1.5 times as fast",
    }
    say({**first, "open": True})
    time.sleep(3)
    return {"html": "<p>The answer</p>", "data": {}, "title": "tp=2", "proven": "", "open": False}
