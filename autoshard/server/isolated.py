"""One piece of work in a process of its own, with limits of time, memory and reach.

The process is forked from a server that has planned once and done nothing else, so it starts in milliseconds. It
gets checked values and gives back JSON: nothing that it says is unpickled. Limits of the system bound its time and
memory and let it write no file. An audit hook refuses what planning never does, so that a mistake elsewhere (a path
that was taken for a name) ends in an error; it is no wall against code that already runs.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError

FORBIDDEN = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "pickle.",
             "socket.", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink",
             "ctypes.", "webbrowser.", "urllib.", "ftplib.", "shutil.")  # fmt: skip
"""Prefixes of audit events (PEP 578) that planning never causes."""


PRELOADED = ["autoshard.server.warm"]
SAY_S = 0.8
"""Seconds that an answer is waited for before the best that is known is shown, and from one such to the next."""
Say = Callable[[Mapping[str, Any]], None]
"""Type of a function by which work says what it knows so far."""
Function = Callable[[Any, Say], Mapping[str, Any]]
"""Type of work: (job, say) -> its result, a JSON value."""


@dataclass(frozen=True)
class Limits:
    """The most that one piece of work may take. memory_bytes: of address space."""

    wall_s: float = 20.0
    cpu_s: int = 20
    memory_bytes: int = 4 * 2**30


class TookTooMuchError(AutoshardError):
    """The work ran into a limit."""


def start() -> None:
    """Starts the process that pieces of work are forked from; else the first one would wait for it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


class Work:
    """A piece of work that runs. Mutable: it ends, or is stopped."""

    def __init__(self, function: Function, job: Mapping[str, Any], limits: Limits):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._limits = limits
        self._ours, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(function, job, limits, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def result(self, say: Say | None = None) -> Any:
        """The JSON value that the function returned. Blocks. say: gets, every SAY_S seconds, the newest of what the
        function has said; after that time whatever comes first. Raises AutoshardError as the function did, and
        TookTooMuchError at a limit and where it was stopped."""
        begin_s, due_s, newest = time.monotonic(), SAY_S, None
        try:
            while True:
                until_s = self._limits.wall_s if newest is None else min(due_s, self._limits.wall_s)
                now_s = time.monotonic() - begin_s
                if self._ours.poll(max(0.0, until_s - now_s)):
                    value = json.loads(self._ours.recv_bytes())
                    if "so_far" not in value:
                        break
                    newest = value["so_far"] if say else None
                elif say and newest is not None and until_s == due_s:
                    say(newest)
                    newest, due_s = None, max(due_s, now_s) + SAY_S
                else:
                    raise TookTooMuchError(f"this takes more than {self._limits.wall_s:g} s; pin more, or ask for less")
        except EOFError:
            gigabytes = self._limits.memory_bytes / 2**30
            raise TookTooMuchError(f"this takes more than {gigabytes:g} GiB or {self._limits.cpu_s} s") from None
        finally:
            self.stop()
            self._ours.close()
        if "error" in value:
            raise AutoshardError(value["error"])
        return value["result"]

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        with contextlib.suppress(OSError, ValueError):
            self._process.kill()
            self._process.join()


def _run(function: Function, job: Any, limits: Limits, pipe: Connection) -> None:
    """The process: limits first, then the work, then its result as JSON, after what it says on the way."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir("/")
    sys.path[:] = [path for path in sys.path if path]
    sys.addaudithook(_guard(_roots()))

    def say(value: Mapping[str, Any]) -> None:
        pipe.send_bytes(json.dumps({"so_far": value}).encode())

    try:
        value: Mapping[str, Any] = {"result": function(job, say)}
    except AutoshardError as error:
        value = {"error": str(error)}
    except MemoryError:
        return
    except Exception as error:  # a mistake of ours must not tell about this machine
        value = {"error": f"this cannot be planned here ({type(error).__name__})"}
    pipe.send_bytes(json.dumps(value).encode())


def _roots() -> tuple[str, ...]:
    """Folders with installed code and the package's own data."""
    package = Path(__file__).resolve().parents[1]
    linked = [child for child in package.iterdir() if child.is_symlink()]
    installed = [Path(path) for path in sys.path if path.endswith("site-packages")]
    roots = (package, *linked, *installed, Path(sys.prefix), Path(sys.base_prefix))
    return tuple(f"{root.resolve()}{os.sep}" for root in roots)


def _guard(roots: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int):
                return
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or flags & (os.O_WRONLY | os.O_RDWR)
            if writes or not os.path.realpath(path).startswith(roots):
                raise PermissionError(f"{event} is not allowed here")
        elif event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")

    return guard
