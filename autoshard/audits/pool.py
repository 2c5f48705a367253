"""Processes that answer calls, each over a pipe of its own: nothing with a name that could outlive them.

They end with this process, however it ends: at once where it stops by an exception or a signal, and by themselves where
it was killed. multiprocessing's own pools keep named semaphores, and wait at exit for a process that was stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess, SpawnProcess
from types import FrameType, ModuleType, TracebackType
from typing import Any, TypeVar
from warnings import catch_warnings, simplefilter

from autoshard.errors import AutoshardError

Found = TypeVar("Found")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class ProcessGone(AutoshardError):
    """Raised where a process was ended from outside."""


class Pool:
    """Starts on entry, ends everything on exit."""

    def __init__(self, processes: int, forks: bool = False):
        """forks: whether they may be copies of this process, which import nothing anew, where that is safe: on Linux,
        with no other thread of Python's. Threads of numpy's libraries see to it themselves."""
        self._processes = processes
        self._forks = forks and sys.platform == "linux" and threading.active_count() == 1
        self._workers: dict[Connection, SpawnProcess | ForkProcess] = {}

    def __enter__(self) -> Pool:
        context = multiprocessing.get_context("fork") if self._forks else multiprocessing.get_context("spawn")
        # multiprocessing starts its tracker with the first process and unblocks SIGINT then: start it before.
        if not self._forks:
            resource_tracker.ensure_running()
        # A signal waits until all are started: one that is being started would read half of what it is told. They never
        # hear of Ctrl-C: a terminal tells all of its processes, and each would have its say.
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *STOP_SIGNALS})
            try:
                for _ in range(self._processes):
                    ours, theirs = context.Pipe()
                    worker = context.Process(target=_answer, args=(theirs,), daemon=True)
                    self._workers[ours] = worker
                    with _no_main_module(), catch_warnings():
                        simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts threads of numpy's libraries
                        worker.start()
                    theirs.close()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for connection, worker in self._workers.items():
            connection.close()
            if worker.pid is not None:
                worker.kill()  # a process that was stopped ends by nothing less
                worker.join()

    def results(
        self, function: Callable[..., Found], arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Found]]:
        """(number of the arguments, what the function gives) of each call, in the order in which they end.

        Raises what a call raised, and ProcessGone where a process is gone.
        """
        calls, under_way, idle = deque(enumerate(arguments)), dict[Connection, int](), [*self._workers]
        try:
            while calls or under_way:
                while calls and idle:
                    number, asked = calls.popleft()
                    idle[-1].send((function, asked))
                    under_way[idle.pop()] = number
                for connection in wait([*under_way]):
                    assert isinstance(connection, Connection)
                    answer, error = connection.recv()
                    if error is not None:
                        raise error
                    idle.append(connection)
                    yield under_way.pop(connection), answer
        except (EOFError, ConnectionError):
            raise ProcessGone("a process of the audit was ended from outside; was there enough memory?") from None

    def has_answered(self) -> bool:
        """Whether, in a pool of one process, a call has ended whose outcome was not taken, or the process has."""
        (connection,) = self._workers
        try:
            return connection.poll()
        except (EOFError, ConnectionError):
            return True

    def begun(self, function: Callable[..., Found], *asked: Any) -> Callable[[], Found]:
        """Begin one call more, in a pool of one process; the function that is returned waits for what it gives, and is
        called in the order of the calls.

        That raises what the call raised, and ProcessGone where the process is gone.
        """
        (connection,) = self._workers
        with suppress(ConnectionError):  # it is gone: `result` says so
            connection.send((function, asked))

        def result() -> Found:
            try:
                answer, error = connection.recv()
            except (EOFError, ConnectionError):
                raise ProcessGone("a process beside this one was ended from outside") from None
            if error is not None:
                raise error
            found: Found = answer
            return found

        return result


@contextmanager
def _no_main_module() -> Iterator[None]:
    """A process that is begun within does not import this program's main module, as multiprocessing would have it do:
    calls need nothing of it, and a script would do all that it does once more."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _answer(calls: Connection) -> None:
    """Run a process of the pool: each call that comes through the pipe is answered, until the pipe is closed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):
        while True:
            calls.send(_outcome(*calls.recv()))


def _outcome(function: Callable[..., Any], asked: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        return function(*asked), None
    except AutoshardError as error:
        return None, error
    except Exception:
        return None, RuntimeError(traceback.format_exc())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def clean_end() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit with the shell's code for them, so that what was begun is ended in order.

    One that is ignored (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    known = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    kept = {number: handler for number, handler in known.items() if handler not in (signal.SIG_IGN, None)}
    for number in kept:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
