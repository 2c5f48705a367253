"""How far a run is: a bar on a terminal, a line now and then everywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from autoshard.units import format_count

if TYPE_CHECKING:
    from rich.progress import Progress

_NUM_PLAIN_LINES = 10


def wants_plain_text(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Pipes, files, NO_COLOR (https://no-color.org) and dumb terminals get lines without control characters."""
    return not file.isatty() or bool(environment.get("NO_COLOR")) or environment.get("TERM") in ("dumb", "unknown")


def format_duration(seconds: float) -> str:
    """3_725 -> '1:02:05', 65 -> '1:05'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressDisplay:
    """Shows the steps of a run as they end.

    tokens_per_step: of the global batch, for tokens/s.
    file: stdout unless given. plain: decided by wants_plain_text unless given.
    clock: seconds, for tests.
    Tokens per second are an average over all steps but the first, which also warms up; so is the time left.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        tokens_per_step: int,
        description: str = "training",
        file: TextIO | None = None,
        plain: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps = total_steps
        self._tokens_per_step = tokens_per_step
        self._description = description
        self._file = file or sys.stdout
        self._clock = clock
        self._first: tuple[int, float] | None = None  # steps done and when, at the first update
        self.tokens_per_s: float | None = None
        if plain is None:
            plain = wants_plain_text(self._file, os.environ)
        self._bar = None if plain else _bar(self._file)
        self._task = None if self._bar is None else self._bar.add_task(description, total=total_steps, numbers="")
        if self._bar is not None:
            self._bar.start()

    def update(self, steps_done: int, loss: float) -> None:
        """Show how far training is, on a terminal at once, else when a line is due.

        steps_done: 1 after the first step. loss: of the last step.
        """
        numbers = "  ".join([f"loss {loss:.4f}", *self._rate(steps_done)])
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=steps_done, numbers=numbers)
        elif self._is_due(steps_done):
            self._print(f"{self._description} {steps_done}/{self._total_steps}  {numbers}")

    def note(self, text: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._print(text)

    def close(self) -> None:
        """Leave the bar as it stands and give the terminal back. Closing again does nothing."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _rate(self, steps_done: int) -> list[str]:
        now_s = self._clock()
        if self._first is None:
            self._first = (steps_done, now_s)
            return []
        first_step, first_s = self._first
        if steps_done <= first_step or now_s <= first_s:
            return []
        step_time_s = (now_s - first_s) / (steps_done - first_step)
        self.tokens_per_s = self._tokens_per_step / step_time_s
        left = format_duration((self._total_steps - steps_done) * step_time_s)
        return [f"{format_count(self.tokens_per_s)} tokens/s", f"{left} left"]

    def _is_due(self, steps_done: int) -> bool:
        every = max(1, self._total_steps // _NUM_PLAIN_LINES)
        return steps_done in (1, self._total_steps) or steps_done % every == 0

    def _print(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def _bar(file: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=Console(file=file, force_terminal=True),
        redirect_stdout=False,
        redirect_stderr=False,
    )
