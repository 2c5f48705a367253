"""Decides which rank's failure caused the others, and writes the one message that tells it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.runtime.neuron_errors import advice

_TAIL_LINES, _TAIL_BYTES, _LINE_LENGTH = 20, 16_384, 300


@dataclass(frozen=True)
class RankFailure:
    """How one rank failed.

    time_s: when the supervisor heard of it, on the monotonic clock. error_type, error_text: its exception, as
    `worker.describe` names it; "" when it left none. echo: whether the exception looks like the consequence of another
    rank's end (a lost connection, a time-out in a collective). exit_code: as subprocess gives it, -9 for SIGKILL; None
    while the process still exists. silent_s: for how many seconds nothing was heard of it, when that is the failure.
    """

    rank: int
    last_action: str
    time_s: float = field(compare=False)
    error_type: str = ""
    error_text: str = ""
    echo: bool = False
    exit_code: int | None = None
    silent_s: float | None = None

    @property
    def headline(self) -> str:
        """One line: the rank, what it was doing, the cause, and what to do where the cause does not say it."""
        doing = f"in {self.last_action}" if self.last_action else "before its first action"
        if self.error_type:
            said = advice(self.error_text)
            return f"rank {self.rank} failed {doing}: {self.error_type}: {self.error_text}" + (said and f" ({said})")
        if self.silent_s is not None:
            return f"rank {self.rank} hung {doing}: nothing heard from it for {self.silent_s:.0f} s"
        if self.exit_code is not None and self.exit_code < 0:
            return f"rank {self.rank} was killed by signal {-self.exit_code} ({_signal_name(-self.exit_code)}) {doing}"
        return f"rank {self.rank} exited with code {self.exit_code} {doing}, its work not done"

    @property
    def is_users_mistake(self) -> bool:
        """Whether the user caused it. The text then says everything; neither a traceback nor a log adds to it."""
        return self.error_type == AutoshardError.__name__

    @property
    def exit_code_of_run(self) -> int:
        """The run's exit code: 2 for the user's mistake, as when the supervisor finds it, else 1."""
        return 2 if self.is_users_mistake else 1


def is_clear(failure: RankFailure) -> bool:
    """Whether the failure cannot be the consequence of another rank's end. SIGABRT can: gloo aborts when its peers
    vanish."""
    return not failure.echo and failure.exit_code != -signal.SIGABRT


def cause(failures: list[RankFailure]) -> RankFailure:
    """The first failure that is clear; without one, the first that is not an echo; else the first."""
    return min(failures, key=lambda failure: (not is_clear(failure), failure.echo, failure.time_s))


def failure_message(failure: RankFailure, num_processes: int, log_file: Path) -> str:
    """The headline and, unless it is the user's mistake, the end of the rank's log."""
    if failure.is_users_mistake:
        return failure.error_text
    others = {1: "", 2: "; the other rank was stopped"}.get(
        num_processes, f"; the other {num_processes - 1} ranks were stopped"
    )
    lines = [failure.headline + others]
    tail = log_tail(log_file)
    if tail:
        lines += [f"the end of {log_file}:", *(f"    {line}" for line in tail)]
    return "\n".join(lines)


def log_tail(log_file: Path) -> list[str]:
    """The last lines of a log, without control characters, which would reach the terminal."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = ["".join(c for c in line if c.isprintable() or c == "\t") for line in text.splitlines()]
    return [line[:_LINE_LENGTH] for line in lines if line.strip()][-_TAIL_LINES:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown signal"
