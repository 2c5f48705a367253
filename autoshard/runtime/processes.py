"""Holds one worker process for its supervisor: a message pipe, a lifeline, a log file, and a process group to end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_WORKER = "from autoshard.runtime.worker import main; main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


class Stopped(Exception):
    """A process was no longer wanted before it had begun."""


def python_command(statements: str, *arguments: str) -> list[str]:
    """The command of an interpreter that runs statements, which find the arguments in sys.argv from 2 on.

    It gets this process's own import path, so that both import the same autoshard, and nothing from the current folder,
    where a user's random.py would be found first. An argument rather than PYTHONPATH, which whatever it starts would
    inherit.
    """
    path = chr(0x1F).join(entry or str(Path.cwd()) for entry in sys.path)
    bootstrap = f"import sys; sys.path[:] = sys.argv[1].split(chr(0x1f)); {statements}"
    return [sys.executable, "-c", bootstrap, path, *arguments]


@dataclass(frozen=True)
class Beginning:
    """A process of a run, as it is about to begin.

    folder: where it works. environment: variables that are this rank's own. stdin_fd, log_fd, report_fd: the ends of
    its lifeline, its log and its pipe to the supervisor.
    """

    rank: int
    spec_path: Path
    folder: Path
    environment: dict[str, str]
    stdin_fd: int
    log_fd: int
    report_fd: int


class Process(Protocol):
    """A child of this process."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Waits for its end -> exit code, or minus the signal that ended it."""

    def poll(self) -> int | None:
        """The same without waiting; None while it runs."""


Start = Callable[[Beginning, Callable[[], bool]], Process | None]
"""Type of a function that starts a process: beginning, whether to stop waiting for it -> the process, None where it
was stopped. It raises OSError where the process cannot be made."""


def start_interpreter(beginning: Beginning, stopped: Callable[[], bool]) -> Process:
    """A new interpreter."""
    report_fd = beginning.report_fd
    return subprocess.Popen(
        python_command(_WORKER, str(beginning.spec_path), str(beginning.rank), str(report_fd)),
        stdin=beginning.stdin_fd,
        stdout=beginning.log_fd,
        stderr=subprocess.STDOUT,
        pass_fds=[report_fd],
        start_new_session=True,  # a group to end as one, and Ctrl-C reaches the supervisor alone
        cwd=beginning.folder,
        env=common_environment() | beginning.environment,
    )


class ForkedProcess:
    """A child that another process forked; its id is `pid`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """Waits for its end -> exit code, or minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def poll(self) -> int | None:
        """The same without waiting; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


class WorkerProcess:
    """One worker process, which starts on construction. Raises OSError when the log file or the process cannot be
    made, and Stopped where `stopped` says so before it has begun."""

    def __init__(
        self,
        rank: int,
        num_processes: int,
        spec_path: Path,
        log_file: Path,
        start: Start,
        stopped: Callable[[], bool],
    ) -> None:
        self.rank = rank
        self.log_file = log_file
        self.result: dict[str, Any] | None = None
        self.done = False
        self.heard_s = time.monotonic()
        self.exit_code: int | None = None
        self._buffer = b""
        with ExitStack() as ours, ExitStack() as theirs:
            read_fd, write_fd = os.pipe()
            ours.callback(os.close, read_fd)
            theirs.callback(os.close, write_fd)
            stdin_fd, self._lifeline = os.pipe()
            ours.callback(os.close, self._lifeline)
            theirs.callback(os.close, stdin_fd)
            log = theirs.enter_context(log_file.open("wb"))
            environment = _environment(rank, num_processes)
            fds = (stdin_fd, log.fileno(), write_fd)
            process = start(Beginning(rank, spec_path, Path.cwd(), environment, *fds), stopped)
            if process is None:
                raise Stopped
            ours.pop_all()
        self._process, self._is_released = process, False
        os.set_blocking(read_fd, False)
        self.message_fd: int | None = read_fd

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields every whole message that has arrived. At the end of the pipe message_fd becomes None."""
        for _ in range(4):  # more than the 64 KiB that a pipe holds, yet a rank that never pauses cannot keep us here
            if self.message_fd is None:
                break
            try:
                data = os.read(self.message_fd, 65_536)
            except BlockingIOError:
                break
            if not data:
                os.close(self.message_fd)
                self.message_fd = None
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        if lines:
            self.heard_s = time.monotonic()
        for line in lines:
            yield json.loads(line)

    def poll(self) -> int | None:
        """The exit code once the process has ended, else None. Processes that it started and left behind are ended
        then, too."""
        if self.exit_code is None and self._has_ended():
            self.signal_group(signal.SIGKILL)
            self.exit_code = self._process.wait()
        return self.exit_code

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process and everything in its group; does nothing once it was reaped, because its id
        may then be another's."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
                os.killpg(self._process.pid, number)

    def signal_process(self, number: int) -> None:
        """Sends a signal to the process alone; does nothing once it was reaped."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def log_bytes(self) -> int:
        """Size of its log, bytes."""
        return self.log_file.stat().st_size

    def log_text(self, start: int) -> str:
        """The text of its log from byte `start` on."""
        with self.log_file.open("rb") as log:
            log.seek(start)
            return log.read().decode("utf-8", "replace")

    def release(self) -> None:
        """Closes the lifeline; a worker whose work is done leaves then."""
        if not self._is_released:
            os.close(self._lifeline)
            self._is_released = True

    def close(self) -> None:
        """Ends the process and its group at once and frees what the supervisor holds for it."""
        self.signal_group(signal.SIGKILL)
        if self.exit_code is None:
            self.exit_code = self._process.wait()
        self.release()
        if self.message_fd is not None:
            os.close(self.message_fd)
            self.message_fd = None

    def _has_ended(self) -> bool:
        if sys.platform == "darwin":  # has no waitid before Python 3.13
            return self._process.poll() is not None
        # Not reaped yet, so that the group's id cannot be another's by the time the group is ended.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def common_environment() -> dict[str, str]:
    """The variables of every process of a run: this process's own, with what several on one machine need."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    # One thread each: the ranks share the machine's cores.
    environment.setdefault("OMP_NUM_THREADS", "1")
    # gloo would look up the machine's own name to find an interface, which need not resolve on a laptop.
    if sys.platform in _LOOPBACK:
        environment.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    return environment | {"PYTHONUNBUFFERED": "1"}  # what a killed rank had printed is in its log


def _environment(rank: int, num_processes: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
    }
