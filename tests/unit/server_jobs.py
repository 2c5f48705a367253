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


def attempt(job: Mapping[str, Any]) -> Mapping[str, Any]:
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


def take_memory(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Takes memory without end."""
    kept = []
    while True:
        kept.append(bytearray(50_000_000))


def take_time(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sleeps, or computes, without end."""
    while True:
        if job["sleeps"]:
            time.sleep(1)


def crash(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fails with a secret in the error."""
    raise RuntimeError("the secret of this machine")
