"""A process that imports once what ranks need, and forks them: each starts in milliseconds instead of seconds.

Linux alone, and only while the process has one thread: before any process group, thread pool or device is made. Else
each is a new interpreter. Ranks are children of the process that asked for them, as if it had started them itself:
they are forked twice, and the one who asked adopts orphans meanwhile (prctl's PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn, cast

from autoshard.runtime.processes import (
    Beginning,
    ForkedProcess,
    Process,
    Start,
    common_environment,
    python_command,
    start_interpreter,
)
from autoshard.runtime.worker import end_with_parent, importing, main

_SERVE = "from autoshard.runtime.fork_server import serve; serve(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
_MESSAGE_BYTES = 65_536
_LOOK_S = 0.1
_ADOPTED_S = 0.0005
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ForkServer:
    """Starts processes as `start_interpreter` does. One that is gone, or was never alone, has new interpreters started
    in its place, whose failures are then theirs."""

    def __init__(self, connection: socket.socket) -> None:
        """connection: to a process that runs `serve`."""
        self._connection: socket.socket | None = connection
        connection.settimeout(_LOOK_S)

    def __call__(self, beginning: Beginning, stopped: Callable[[], bool]) -> Process | None:
        """The process that has begun; None where `stopped` says so before it has: the server may still import.

        Raises OSError when it cannot be made.
        """
        answer = self._answer(beginning, stopped)
        if answer is None:
            return None if stopped() else start_interpreter(beginning, stopped)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return ForkedProcess(answer["pid"])

    def _answer(self, beginning: Beginning, stopped: Callable[[], bool]) -> dict[str, int] | None:
        if self._connection is None:
            return None
        places = [str(beginning.spec_path), str(beginning.folder)]
        asked = json.dumps([beginning.rank, *places, beginning.environment]).encode()
        fds = [beginning.stdin_fd, beginning.log_fd, beginning.report_fd]
        with suppress(OSError), _adopting_orphans():
            socket.send_fds(self._connection, [asked], fds)
            while not stopped():
                with suppress(TimeoutError):
                    answer: dict[str, int] | None = json.loads(self._connection.recv(_MESSAGE_BYTES) or b"null")
                    if answer is not None:
                        return answer
                    break
        self._connection = None  # whoever made it closes it; a process that still begins finds itself not adopted
        return None


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process the parent of its children's orphans."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


@contextmanager
def fork_server(modules: Sequence[str]) -> Iterator[Start]:
    """A server that begins to import the modules at once; `start_interpreter` where the system forks no such processes,
    and in another thread than the main one, with which the server would end."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield start_interpreter
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                python_command(_SERVE, str(theirs.fileno()), str(os.getpid()), *modules),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches the supervisor alone
                env=common_environment(),
            )
        try:
            yield ForkServer(ours)
        finally:
            process.kill()
            process.wait()


def serve(connection_fd: int, parent_pid: int, modules: Sequence[str]) -> NoReturn:
    """Import the modules, then fork whatever is asked for until the connection is closed.

    What cannot be imported is left to the ranks, whose failures are reported.
    """
    end_with_parent(parent_pid)
    connection = socket.socket(fileno=connection_fd)
    with suppress(Exception), importing():  # which also keeps their pages shared: no collection touches them
        for module in modules:
            import_module(module)
    while True:
        asked, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        if not asked or not _is_alone():
            os._exit(0)
        answer = _fork(connection, asked, fds)
        with suppress(OSError):  # the one who asked is gone, and we are soon
            connection.send(json.dumps(answer).encode())
        for fd in fds:
            os.close(fd)


def _fork(connection: socket.socket, asked: bytes, fds: Sequence[int]) -> dict[str, int]:
    """Fork the process that was asked for -> its id, or why there is none.

    When this returns it is an orphan, as a child in between has forked it and ended, and leads a group of its own: who
    is told its id may end that group at once.
    """
    read_fd, write_fd = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            os.close(read_fd)
            _fork_again(connection, asked, fds, write_fd)
        os.waitpid(between, 0)
    except OSError as error:
        os.close(read_fd)
        return {"errno": error.errno or 0}
    finally:
        os.close(write_fd)
    with os.fdopen(read_fd, "rb") as told:
        return cast("dict[str, int]", json.loads(told.read() or json.dumps({"errno": errno.ECHILD})))


def _fork_again(connection: socket.socket, asked: bytes, fds: Sequence[int], tell_fd: int) -> NoReturn:
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.write(tell_fd, json.dumps({"errno": error.errno}).encode())
        os._exit(1)
    if pid:
        os._exit(0)
    os.setsid()
    os.write(tell_fd, json.dumps({"pid": os.getpid()}).encode())
    os.close(tell_fd)
    connection.close()
    _begin(asked, fds, between)


def _begin(asked: bytes, fds: Sequence[int], forked_by: int) -> NoReturn:
    rank, spec_path, folder, environment = json.loads(asked)
    stdin_fd, log_fd, report_fd = fds
    for fd, standard in ((stdin_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(fd, standard)
    os.close(stdin_fd)
    os.close(log_fd)
    os.chdir(folder)
    os.environ.update(environment)
    while os.getppid() == forked_by:
        time.sleep(_ADOPTED_S)
    main(spec_path, rank, report_fd)


def _is_alone() -> bool:
    """Whether this process has one thread: locks that others hold stay locked in a fork."""
    return len(list(Path("/proc/self/task").iterdir())) == 1
