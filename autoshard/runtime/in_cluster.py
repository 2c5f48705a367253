"""One function as one rank of a cluster's launcher, in this process: each rank looks after itself alone."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from autoshard.errors import say_error
from autoshard.runtime.environment import ClusterEnvironment
from autoshard.runtime.failures import RankFailure, is_clear
from autoshard.runtime.hang import is_waiting
from autoshard.runtime.launch import Message, RunOutcome
from autoshard.runtime.worker import Reporter, describe, end_with_parent, exit_now, resolve

COLLECTIVES_LATER_S = 3.0
"""How much longer a collective should wait than a rank may be silent: a rank that hangs tells it first."""
_SETTLE_S = 1.0
"""How long the consequence of another rank's end is kept back: torchrun looks at its ranks ten times a second, and ends
this one."""
_APART_S = 0.5
"""Between the ranks of a machine that would tell the same."""
_LOOK_S = 0.2


def run_in_cluster(
    worker: str,
    arguments: Mapping[str, Any],
    environment: ClusterEnvironment,
    *,
    on_message: Callable[[Message], None],
    hang_timeout_s: float | None = None,
) -> RunOutcome:
    """Run worker(arguments, reporter), as `run_processes` does, as one rank that torchrun or Slurm started.

    on_message: called on rank 0 alone, with its own messages. results: this rank's alone. When a rank fails, the
    launcher ends the others. The caller leaves by autoshard.runtime.worker.exit_now.
    hang_timeout_s: a rank that neither did anything new nor waited for others for so long, since its first action, says
    so and ends this process; None: never.
    """
    watch = _Watch(environment, hang_timeout_s)
    if environment.launcher == "torchrun":
        end_with_parent(os.getppid())  # torchrun that is killed ends no rank, and no other rank misses one

    def send(message: dict[str, Any]) -> None:
        watch.alive()
        if environment.rank == 0:
            on_message(Message(0, message["kind"], message["values"]))

    reporter = Reporter(
        rank=environment.rank,
        local_rank=environment.local_rank,
        world_size=environment.world_size,
        init_method=environment.init_method,
        send=send,
        write_action=watch.alive,
    )
    try:
        result = resolve(worker)(dict(arguments), reporter)
    except Exception as error:  # reported as a rank's failure is anywhere, with the traceback that its log would hold
        watch.end()
        failure = RankFailure(environment.rank, reporter.last_action, time.monotonic(), **describe(error))
        if not is_clear(failure):
            time.sleep(_SETTLE_S + _APART_S * environment.local_rank)
        elif not failure.is_users_mistake:
            sys.excepthook(type(error), error, error.__traceback__)
        text = failure.error_text if failure.is_users_mistake else failure.headline
        return RunOutcome(failure.exit_code_of_run, message=text, results=(None,), log_files=(), failure=failure)
    watch.end()
    return RunOutcome(exit_code=0, message="", results=(result,), log_files=())


class _Watch:
    """Looks at this process from a thread of its own; it never sees one that the system has stopped."""

    def __init__(self, environment: ClusterEnvironment, timeout_s: float | None) -> None:
        self._environment, self._timeout_s = environment, timeout_s
        self._action, self._heard_s = "", time.monotonic()
        self._ended = threading.Event()

    def alive(self, action: str | None = None) -> None:
        """The rank does something new."""
        self._heard_s = time.monotonic()
        if action is None or self._timeout_s is None:
            return
        if not self._action:
            threading.Thread(target=self._look, args=(self._timeout_s,), daemon=True, name="watch").start()
        self._action = action

    def end(self) -> None:
        self._ended.set()

    def _look(self, timeout_s: float) -> None:
        limit_s = timeout_s + _APART_S * self._environment.local_rank
        while not self._ended.wait(_LOOK_S):
            silent_s = time.monotonic() - self._heard_s
            if silent_s >= limit_s and not is_waiting(stacks := _stacks()):
                self._tell(silent_s, stacks)

    def _tell(self, silent_s: float, stacks: str) -> NoReturn:
        now_s = time.monotonic()
        failure = RankFailure(self._environment.rank, self._action, now_s, silent_s=silent_s)
        say_error(failure.headline, before=stacks)
        exit_now(failure.exit_code_of_run)


def _stacks() -> str:
    """Tracebacks of this process's threads, as faulthandler prints them."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read().decode("utf-8", "replace")
