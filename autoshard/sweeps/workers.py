"""Spreads the points of a sweep over processes of this machine.

Each worker has one point at a time, so that it is known which point a worker that was killed had. Workers end with the
process that started them, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait

from autoshard.runtime.processes import python_command
from autoshard.sweeps.execute import ENDING_S, leave_by_exception
from autoshard.sweeps.outcome import LOST, Outcome
from autoshard.sweeps.point import Spread, Task, done_json, outcome_from, task_json

MOST_TRIES = 2
"""A point whose workers were killed so often is left for the next sweep: it is probably what kills them."""
_WORKER = "from autoshard.sweeps.workers import main; main(int(sys.argv[2]), int(sys.argv[3]))"


class _Worker:
    """A process that does one task after the other."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        try:
            self.process = subprocess.Popen(
                python_command(_WORKER, str(theirs.fileno()), str(os.getpid())),
                stdin=subprocess.PIPE,  # its lifeline
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a group to end as one, and Ctrl-C reaches the sweep alone
            )
        finally:
            theirs.close()
        self.task: Task | None = None

    def give(self, task: Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # it is gone: `answer` says so
            self.pipe.send_bytes(task_json(task).encode())

    def answer(self) -> Outcome | None:
        """The outcome of its task; None where the worker is gone."""
        try:
            return outcome_from(self.pipe.recv_bytes().decode())
        except (EOFError, OSError):
            return None

    def begin_to_end(self) -> None:
        self.process.terminate()  # first: a signal in the middle of a usual exit would be told on stderr
        self.pipe.close()

    def end(self) -> None:
        self.begin_to_end()
        try:
            self.process.wait(2 * ENDING_S)  # a run under way takes up to ENDING_S of that
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


def on_processes(count: int) -> Spread:
    """Does tasks in so many processes. A task whose worker was killed is done again by another, MOST_TRIES times."""

    def spread(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        waiting, tries = deque(tasks), Counter[int]()
        workers = [_Worker() for _ in range(min(count, len(tasks)))]
        try:
            for worker in workers:
                worker.give(waiting.popleft())
            while busy := {worker.pipe: worker for worker in workers if worker.task is not None}:
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    worker = busy[pipe]
                    task, worker.task = worker.task, None
                    assert task is not None
                    outcome = worker.answer()
                    if outcome is None:
                        workers.remove(worker)
                        worker.end()
                        tries[id(task)] += 1
                        if tries[id(task)] < MOST_TRIES:
                            waiting.appendleft(task)
                        else:
                            outcome = Outcome(LOST, f"{MOST_TRIES} workers were killed while they did this point")
                        if waiting:
                            worker = _Worker()
                            workers.append(worker)
                    if waiting:
                        worker.give(waiting.popleft())
                    if outcome is not None:
                        yield task, outcome
        finally:
            for worker in workers:
                worker.begin_to_end()
            for worker in workers:
                worker.end()

    return spread


def main(descriptor: int, supervisor_pid: int) -> None:
    """Does tasks that arrive at a pipe until it closes, or is reset, as one is that closes with an answer unread.
    descriptor: of the pipe."""
    from autoshard.runtime.worker import end_with_supervisor

    end_with_supervisor(supervisor_pid, threading.Event())
    leave_by_exception()
    with Connection(descriptor) as pipe:
        while True:
            try:
                text = pipe.recv_bytes().decode()
            except (EOFError, ConnectionError):
                return
            answer = done_json(text).encode()
            try:
                pipe.send_bytes(answer)
            except ConnectionError:
                return
