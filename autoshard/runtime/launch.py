"""Runs one function in several processes of this machine, and ends all of them whatever happens to one.

The supervisor imports no torch: the processes do, or the fork server whose copies they are. They meet through a file,
not a port, so two runs never take each other's.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.runtime.failures import RankFailure, cause, failure_message, is_clear
from autoshard.runtime.hang import is_waiting
from autoshard.runtime.last_action import LastActions
from autoshard.runtime.processes import Start, Stopped, WorkerProcess, start_interpreter

_SETTLE_S = 1.0
"""How many seconds an unclear failure (a lost connection, an abort) waits for the one that caused it."""
_TICK_S = 0.1
_START_S = 60.0
"""The longest that interpreters and torch take to start, seconds (a guess): silence until then is no hang."""
_STACKS_S = 0.5
"""How many seconds ranks get to write their stacks: they do it at once, on a machine that is not overloaded."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Message:
    """A message that a rank sent with Reporter.report."""

    rank: int
    kind: str
    values: dict[str, Any]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended; all of its processes are gone by now.

    exit_code: 0; 1 after a failure; 2 after a user's mistake that only a rank could see; 128 + the signal's number
    after Ctrl-C (130), SIGTERM (143) or SIGHUP (129). message: for people, "" when all is well. results: what the
    worker function returned, by rank; None for a rank that did not finish. failure: the cause, when a rank failed.
    """

    exit_code: int
    message: str
    results: tuple[dict[str, Any] | None, ...]
    log_files: tuple[Path, ...]
    failure: RankFailure | None = None


def run_processes(
    worker: str,
    arguments: Mapping[str, Any],
    num_processes: int,
    *,
    on_message: Callable[[Message], None],
    log_directory: Path,
    grace_s: float = 5.0,
    hang_timeout_s: float | None = None,
    trusted_prefix: str = "autoshard.",
    start: Start = start_interpreter,
) -> RunOutcome:
    """Run worker(arguments, reporter) in num_processes new processes, and return when the last one is gone.

    worker: "package.module:function" under trusted_prefix, an autoshard.runtime.worker.Work; plans name no code.
    arguments: plain JSON values.
    on_message: called in this thread for every message of every rank; if it raises, all ranks end and it propagates.
    log_directory: rank-00.log, ... hold what each rank printed.
    grace_s: from SIGTERM, or from the end of all work, to SIGKILL.
    hang_timeout_s: a rank with neither message nor new last_action for so long has failed, once every rank had its
    first action or a minute to start; None: never.
    start: how each process is started: as a new interpreter, or by a `fork_server`.
    Call it from a thread that stays: Linux ends the workers with the thread that started them. Signals are handled when
    it is the main one.
    Raises AutoshardError when logs or processes cannot be made.
    """
    assert worker.startswith(trusted_prefix), f"{worker} is not under {trusted_prefix}"
    assert num_processes >= 1, num_processes
    with _scratch_directory() as scratch, _stop_signals() as signals:
        supervisor = _Supervisor(scratch, log_directory, on_message, grace_s, hang_timeout_s, signals)
        try:
            supervisor.start(worker, arguments, num_processes, start)
            supervisor.watch()
            return supervisor.outcome()
        finally:
            supervisor.close()


class _Supervisor:
    """The event loop: reads messages, notices ends, and stops everything once: politely, then by force."""

    def __init__(
        self,
        scratch: Path,
        log_directory: Path,
        on_message: Callable[[Message], None],
        grace_s: float,
        hang_timeout_s: float | None,
        signals: list[int],
    ) -> None:
        self._scratch = scratch
        self._log_directory = log_directory
        self._on_message = on_message
        self._grace_s = grace_s
        self._hang_timeout_s = hang_timeout_s
        self._signals = signals
        self._num_processes = 0
        self._workers: list[WorkerProcess] = []
        self._failures: dict[int, RankFailure] = {}
        self._selector = selectors.DefaultSelector()
        self._action_counts: dict[int, int] = {}
        self._started_s = time.monotonic()
        self._stop_at_s: float | None = None  # SIGTERM is due
        self._kill_at_s: float | None = None  # SIGTERM was sent, or all work is done; SIGKILL is due
        self._actions: LastActions | None = None

    def start(self, worker: str, arguments: Mapping[str, Any], num_processes: int, start: Start) -> None:
        rank, self._num_processes = 0, num_processes
        try:
            self._log_directory.mkdir(parents=True, exist_ok=True)
            self._actions = LastActions.create(self._scratch / "last_actions", num_processes)
            spec_path = self._scratch / "spec.json"
            spec = {
                "worker": worker,
                "arguments": dict(arguments),
                "world_size": num_processes,
                "init_method": f"file://{self._scratch / 'rendezvous'}",
                "last_actions": str(self._scratch / "last_actions"),
                "supervisor_pid": os.getpid(),
            }
            spec_path.write_text(json.dumps(spec), encoding="utf-8")
            for rank in range(num_processes):
                log_file = self._log_directory / f"rank-{rank:02}.log"
                process = WorkerProcess(rank, num_processes, spec_path, log_file, start, lambda: bool(self._signals))
                self._workers.append(process)
                self._selector.register(process.message_fd, selectors.EVENT_READ, process)  # type: ignore[arg-type]
        except Stopped:
            pass  # the signal ends those that have begun
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise AutoshardError(
                f"cannot start rank {rank} of {num_processes}: {where}{error.strerror or error}"
            ) from error

    def watch(self) -> None:
        """Handles messages and ends of processes until every process has ended."""
        while any(process.exit_code is None for process in self._workers):
            closing = any(process.message_fd is None and process.exit_code is None for process in self._workers)
            for key, _ in self._selector.select(0.005 if closing else _TICK_S):
                self._read(key.data)
            for process in self._workers:
                self._notice_end(process)
            self._notice_hang()
            if all(process.done for process in self._workers):
                for process in self._workers:
                    process.release()
                if self._kill_at_s is None:  # one that the system has stopped does not leave by itself
                    self._kill_at_s = time.monotonic() + self._grace_s
            self._stop_when_due()

    def outcome(self) -> RunOutcome:
        log_files = tuple(process.log_file for process in self._workers)
        not_begun = self._num_processes - len(self._workers)
        results = (*(process.result for process in self._workers), *[None] * not_begun)
        finished = not not_begun and all(process.done for process in self._workers)
        failure = cause(list(self._failures.values())) if self._failures else None
        # A cluster's manager sends its SIGTERM to ranks and supervisor alike: then a rank's death by it is no failure.
        if failure is not None and not (self._signals and failure.exit_code == -self._signals[0]):
            message = failure_message(failure, len(self._workers), log_files[failure.rank])
            return RunOutcome(failure.exit_code_of_run, message, results, log_files, failure)
        if self._signals and not finished:
            name = "Ctrl-C" if self._signals[0] == signal.SIGINT else signal.Signals(self._signals[0]).name
            many = f"all {self._num_processes} ranks were" if self._num_processes > 1 else "the one rank was"
            return RunOutcome(128 + self._signals[0], f"interrupted by {name}; {many} stopped", results, log_files)
        return RunOutcome(0, "", results, log_files)

    def close(self) -> None:
        for process in self._workers:
            process.close()
        self._selector.close()
        if self._actions is not None:
            self._actions.close()

    def _read(self, process: WorkerProcess) -> None:
        fd = process.message_fd
        for message in process.messages():
            if message["type"] == "message":
                self._on_message(Message(process.rank, message["kind"], message["values"]))
            elif message["type"] == "done":
                process.done, process.result = True, message["result"]
            else:
                del message["type"]
                self._fail(RankFailure(rank=process.rank, time_s=time.monotonic(), **message))
        if process.message_fd is None and fd is not None:
            self._selector.unregister(fd)

    def _notice_end(self, process: WorkerProcess) -> None:
        if process.exit_code is not None or process.poll() is None:
            return
        self._read(process)  # its last words
        if not process.done and process.rank not in self._failures:
            action = self._action(process.rank)
            self._fail(RankFailure(process.rank, action, time.monotonic(), exit_code=process.exit_code))

    def _notice_hang(self) -> None:
        if self._hang_timeout_s is None or self._stop_at_s is not None or self._kill_at_s is not None:
            return
        now_s = time.monotonic()
        assert self._actions is not None
        for process in self._workers:
            count = self._actions.count(process.rank)
            if process.done or count != self._action_counts.get(process.rank):
                self._action_counts[process.rank] = count
                process.heard_s = now_s
        if now_s < self._started_s + _START_S and not all(
            process.done or self._action_counts[process.rank] for process in self._workers
        ):
            for process in self._workers:
                process.heard_s = now_s
        if now_s - min(process.heard_s for process in self._workers) >= self._hang_timeout_s:
            process = self._hanging(now_s - self._hang_timeout_s / 2)
            silent_s = now_s - process.heard_s
            self._fail(RankFailure(process.rank, self._action(process.rank), now_s, silent_s=silent_s), stop_in_s=0.0)

    def _hanging(self, since_s: float) -> WorkerProcess:
        """The silent rank that hangs: one that is stopped; else one that does not wait for others; else the one silent
        first.

        since_s: ranks silent since then count. A rank that the system has stopped does not even write its stacks; it
        goes first, because another may wait for a lock that it holds, and not in a collective. The times alone do not
        tell ranks apart: when one hangs, the others wait for it within microseconds.
        """
        silent = sorted((one for one in self._workers if one.heard_s <= since_s), key=lambda one: one.heard_s)
        before = [one.log_bytes() for one in silent]
        for process in silent:
            process.signal_process(signal.SIGUSR1)  # its stacks go to its log
        time.sleep(_STACKS_S)
        stacks = [process.log_text(start) for process, start in zip(silent, before, strict=True)]
        likely = min(range(len(silent)), key=lambda i: (is_waiting(stacks[i]), bool(stacks[i])))
        return silent[likely]

    def _action(self, rank: int) -> str:
        assert self._actions is not None
        return self._actions.read(rank)

    def _fail(self, failure: RankFailure, stop_in_s: float | None = None) -> None:
        if self._kill_at_s is not None:  # we are stopping them all: this is our own doing
            return
        self._failures[failure.rank] = failure
        if stop_in_s is None:
            stop_in_s = 0.0 if is_clear(failure) else _SETTLE_S
        due_s = time.monotonic() + stop_in_s
        self._stop_at_s = due_s if self._stop_at_s is None else min(self._stop_at_s, due_s)

    def _stop_when_due(self) -> None:
        now_s = time.monotonic()
        if self._signals and self._stop_at_s is None:
            self._stop_at_s = now_s
        if self._stop_at_s is not None and self._kill_at_s is None and (self._signals or now_s >= self._stop_at_s):
            self._kill_at_s = now_s + self._grace_s
            for process in self._workers:
                process.signal_group(signal.SIGTERM)
        if self._kill_at_s is not None and (len(self._signals) > 1 or now_s >= self._kill_at_s):
            for process in self._workers:
                process.signal_group(signal.SIGKILL)


@contextmanager
def _scratch_directory() -> Iterator[Path]:
    try:
        directory = tempfile.TemporaryDirectory(prefix="autoshard-")
    except OSError as error:
        raise AutoshardError(f"cannot make a temporary folder (TMPDIR chooses where): {error}") from error
    with directory as path:
        yield Path(path)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects signals that ask to stop, instead of acting on them; a signal that the shell ignored stays ignored."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
